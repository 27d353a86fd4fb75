"""`ElasticJob`, the resource with which people of Kubernetes describe a job.

`definition` has its schema, `resource` reads it, and `job` makes the spec of a job from it. `client` asks the
API server. What the controller does with a resource is decided in `elastane.cluster.controller.elastic_jobs`.
"""
