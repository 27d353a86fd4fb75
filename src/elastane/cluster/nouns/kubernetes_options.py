"""The options of engines of kind ``kubernetes`` and of their pools."""

from elastane.cluster.nouns.option_forms import (
    ANSWER,
    COMMAND,
    CPUS,
    HOME,
    PATH,
    SIZE,
    WORKERS,
    EngineOption,
    KindOptions,
    make_form,
)
from elastane.common.field_checks import NAME

DNS_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
DNS_NAME = rf"(?=.{{1,253}}\Z){DNS_LABEL}(?:\.{DNS_LABEL})*"
LABEL_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
LABEL_KEY = rf"(?:{DNS_LABEL}(?:\.{DNS_LABEL}){{0,15}}/)?{LABEL_NAME}"
VOLUME = rf"{DNS_LABEL}(?:\.{DNS_LABEL}){{0,15}}:/[^\s,:\x00-\x1f\x7f]{{1,1000}}"
TOLERATED = rf"{LABEL_KEY}(?:=(?:{LABEL_NAME})?)?(?::(?:NoSchedule|PreferNoSchedule|NoExecute))?"

_NAMESPACE = make_form("a name of a namespace", DNS_LABEL)
_NAME = make_form("a name of Kubernetes", DNS_NAME)
_CONTEXT = make_form("a name of a context", r"[^\s\x00-\x1f\x7f]{1,253}")
_IMAGE = make_form("an image", r"[a-z0-9][A-Za-z0-9._/:@-]{0,511}")
_VOLUMES = make_form("CLAIM:/PATH, or several with commas between them", rf"{VOLUME}(?:,{VOLUME}){{0,15}}")
_USER = make_form("UID or UID:GID", r"\d{1,9}(?::\d{1,9})?")
_RESOURCE = make_form("cpu, or a resource such as nvidia.com/gpu", rf"cpu|(?=[^/]+/){LABEL_KEY}")
_SELECTOR = make_form(
    "LABEL=VALUE, or several with commas between them",
    rf"{LABEL_KEY}=(?:{LABEL_NAME})?(?:,{LABEL_KEY}=(?:{LABEL_NAME})?){{0,31}}",
)
_TOLERATIONS = make_form(
    "KEY, KEY=VALUE or KEY=VALUE:EFFECT, or several with commas between them",
    rf"{TOLERATED}(?:,{TOLERATED}){{0,31}}",
)
_URL = make_form("a URL that begins with https://", r"https://[^\s/?#]{1,300}")
_TEAM = make_form("a name of a team", NAME.pattern)
_LABEL_VALUE = make_form("a name of a queue", LABEL_NAME)

IMAGE = EngineOption(
    name="image",
    metavar="IMAGE",
    help="Image of the agents, with elastane and torch. That of a job counts for most, then that of a pool.",
    example="team/train:1",
    form=_IMAGE,
)

KUBERNETES = KindOptions(
    engine=(
        EngineOption(
            name="context",
            metavar="CONTEXT",
            help="Context of the kubeconfig. Default: its current one or, inside a cluster, that cluster.",
            example="east",
            form=_CONTEXT,
        ),
        EngineOption(
            name="kubeconfig",
            metavar="FILE",
            help="Configuration of Kubernetes' clients. Default: $KUBECONFIG, or ~/.kube/config.",
            example="/home/ada/.kube/config",
            form=PATH,
        ),
        EngineOption(
            name="namespace",
            metavar="NAMESPACE",
            help="Namespace of the pods. Default: that of the context.",
            example="training",
            form=_NAMESPACE,
        ),
        IMAGE,
        EngineOption(
            name="imagePullSecret",
            metavar="SECRET",
            help="Secret of the namespace with which images are pulled.",
            example="registry",
            form=_NAME,
        ),
        EngineOption(
            name="serviceAccount",
            metavar="ACCOUNT",
            help="Service account of the pods, which get no token of it. Default: that of the namespace.",
            example="agents",
            form=_NAME,
        ),
        HOME,
        EngineOption(
            name="volume",
            metavar="CLAIM:/PATH",
            help="Persistent volume claims and the paths at which agents see them, with commas between them.",
            example="home:/shared/elastane,data:/data",
            form=_VOLUMES,
        ),
        EngineOption(
            name="user",
            metavar="UID[:GID]",
            help="User and group of the agents, by number. Default: those of the image.",
            example="1000:1000",
            form=_USER,
        ),
        EngineOption(
            name="command",
            metavar="COMMAND",
            help="Command that runs elastane in the image. Default: elastane.",
            example="/opt/train/bin/elastane",
            form=COMMAND,
        ),
        EngineOption(
            name="controller",
            metavar="URL",
            help="Address at which pods reach the controller. Default: the one at which it listens.",
            example="https://elastane.training:7425",
            form=_URL,
        ),
        EngineOption(
            name="elasticJobs",
            metavar="TEAM",
            help="Team that owns the jobs of the ElasticJobs in the namespace. Default: they are ignored.",
            example="vision",
            form=_TEAM,
        ),
        EngineOption(
            name="answer",
            metavar="DURATION",
            help="How long the API server may take for one answer, at most 60s. Default: 5s.",
            example="10s",
            form=ANSWER,
        ),
    ),
    pool=(
        EngineOption(
            name="resource",
            metavar="RESOURCE",
            help="Resource that is a device, such as nvidia.com/gpu. Default: cpu.",
            example="nvidia.com/gpu",
            form=_RESOURCE,
        ),
        IMAGE,
        EngineOption(
            name="cpusPerDevice",
            metavar="N",
            help="CPUs that come with each device. Default: 1 if CPUs are the devices, else none.",
            example="8",
            form=CPUS,
        ),
        EngineOption(
            name="memoryPerDevice",
            metavar="SIZE",
            help="Memory that an agent gets for each device, such as 64G or 500M. Default: no limit.",
            example="64G",
            form=SIZE,
        ),
        EngineOption(
            name="nodeSelector",
            metavar="LABEL=VALUE",
            help="Labels of the nodes of the pool, with commas between them. Default: all nodes.",
            example="gpu=a100",
            form=_SELECTOR,
        ),
        EngineOption(
            name="toleration",
            metavar="KEY[=VALUE][:EFFECT]",
            help="Taints of nodes that the agents tolerate, with commas between them.",
            example="nvidia.com/gpu:NoSchedule",
            form=_TOLERATIONS,
        ),
        EngineOption(
            name="priorityClassName",
            metavar="CLASS",
            help="Priority class of the pods. Default: that of the cluster.",
            example="training",
            form=_NAME,
        ),
        EngineOption(
            name="runtimeClassName",
            metavar="CLASS",
            help="Runtime class of the pods, such as nvidia. Default: that of the nodes.",
            example="nvidia",
            form=_NAME,
        ),
        EngineOption(
            name="queue",
            metavar="QUEUE",
            help="Local queue of Kueue, which admits all or none of the fewest pods that a job needs.",
            example="team-a",
            form=_LABEL_VALUE,
        ),
        EngineOption(
            name="workloadPriorityClassName",
            metavar="CLASS",
            help="Workload priority class of the pods in Kueue. Default: their priority class.",
            example="training",
            form=_NAME,
        ),
        EngineOption(
            name="growthPriorityClassName",
            metavar="CLASS",
            help="Workload priority class of pods beyond the fewest, which Kueue should take back first.",
            example="growth",
            form=_NAME,
        ),
        WORKERS,
    ),
)
