"""The engine for Kubernetes. Each agent is a pod, with its ticket in a Secret of the same name.

The state is that of the API server: a pod is found again by its labels, which have the ids of its agent and
of its cluster. `engine.KubernetesEngine` asks the API server (`api_server`) and follows its lists
(`followed_list`). What its objects mean is decided in `pods`, `nodes` and `refusals`, and the pod that is
created in `manifest`.
"""
