"""``environment.json``: the machine and the software that a model was trained with."""

import msgspec


class TrainingEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """The environment of the process that wrote the model.

    Args:
        platform: operating system, its release, machine type.
        libc: name and version.
        python: implementation and version.
        processor: its model name.
        instruction_set: the widest that torch's kernels use, such as ``AVX2``.
        threads: intra-op.
        deterministic_algorithms: whether ``torch.use_deterministic_algorithms`` was on.
        matmul_precision: ``torch.get_float32_matmul_precision``.
        variables: environment variables that affect the bits, if set.
        packages: version of every installed package that was imported.
    """

    platform: str
    libc: str
    python: str
    processor: str
    instruction_set: str
    threads: int
    deterministic_algorithms: bool
    matmul_precision: str
    variables: dict[str, str]
    packages: dict[str, str]
