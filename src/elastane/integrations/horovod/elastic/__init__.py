"""Elastic training as in ``horovod.torch.elastic``: states, their commits, and what continues from them."""

from elastane.integrations.horovod.elastic.sampler import ElasticSampler
from elastane.integrations.horovod.elastic.state import ElasticState, ObjectState, TorchState
from elastane.integrations.horovod.elastic.training_function import make_elastic
from elastane.integrations.horovod.interrupts import HorovodInternalError, HostsUpdatedInterrupt

# Their names in Horovod.
State, run = ElasticState, make_elastic

__all__ = [
    "ElasticSampler",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "TorchState",
    "run",
]
