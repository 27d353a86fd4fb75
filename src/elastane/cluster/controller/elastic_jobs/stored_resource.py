"""What the store keeps of a resource of which a job was made. Pure."""

import msgspec


class StoredElasticJob(msgspec.Struct, frozen=True, kw_only=True):
    """A resource of which a job was made.

    Args:
        uid: of the resource; one that is deleted and made again is another one.
        engine: in which it is.
        place: API server and namespace in which it was last seen.
        job: name of the job.
        generation: of its spec that the job has.
    """

    uid: str
    engine: str
    place: str
    name: str
    job: str
    generation: int
