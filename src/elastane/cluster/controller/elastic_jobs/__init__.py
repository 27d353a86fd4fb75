"""Jobs that people describe as `ElasticJob` resources of Kubernetes."""
