"""Differential privacy of what sites send: the option of ``run.rounds``, and how often each sample counts.

A virtual rank's difference is clipped, and gets noise that only its site can tell from the difference. Which
samples a round reads follows from positions and seeds, never from their content. So another sample in the
place of one changes only the differences of the virtual ranks that read it, each by at most twice the largest
norm; all that follows from them, such as later models, is computed from what has been sent already. A site
reads each sample once in each of its epochs. The guarantee for one sample is therefore that of as many
additions of Gaussian noise as its site begins epochs.

A site that a round leaves out reads the same samples when it returns. If it was lost within that round, it
may have sent differences that depend on them already. No plan can count these.
"""

import hashlib
import math
from collections.abc import Iterable
from pathlib import Path

import msgspec

from elastane.common.errors import BadInput
from elastane.common.extras import require_for_import
from elastane.common.untrusted_data import Malformed, read_bytes
from elastane.run.nouns.membership import SiteName
from elastane.run.nouns.sites import AbsentRule
from elastane.run.worker.data.batch_sources import BatchPlan
from elastane.run.worker.values import describe_value, to_number

LEAST_SECRET_BYTES, MOST_SECRET_BYTES = 32, 4096
PLACE = "{site}"
"""Stands in the path of a secret for the name of the site."""


class Privacy(msgspec.Struct, frozen=True, kw_only=True):
    """Clip what virtual ranks have changed, and add noise to it before it leaves their site.

    Args:
        clip: the largest norm of what a virtual rank has changed in a round.
        noise: the standard deviation of the noise, as a multiple of ``clip``.
        secret: the path of a file with 32 random bytes or more, the same ones on all machines of a site and
            on no other. ``{site}`` in it stands for the name of the site.
        delta: the probability with which the guarantee may fail; far below one divided by the number of
            samples.
    """

    clip: float
    noise: float
    secret: str | Path
    delta: float = 1e-5

    def compute_epsilon(self, uses: int) -> float:
        """Return epsilon for a sample, from the number of noisy differences that depend on it.

        A reader of all that sites send, with any other knowledge, can hardly tell whether the sample was
        there or another one in its place: no observation is more than ``exp(epsilon)`` times as probable with
        it, except with a probability of ``delta``.

        Args:
            uses: at most as many as a site begins epochs; see `count_uses`.

        Raises:
            MissingExtra: the accountant, that of Opacus, is not installed.
        """
        with require_for_import("privacy", "the accountant of privacy"):
            from opacus.accountants import RDPAccountant
        accountant = RDPAccountant()
        # Two clipped differences are at most twice the largest norm apart. No sample is left out by chance.
        accountant.history = [(self.noise / 2, 1.0, uses)]
        return float(accountant.get_epsilon(self.delta))

    def read_key(self, site: SiteName) -> bytes:
        """Return the key of a site, of its secret.

        Raises:
            BadInput: the file cannot be read, or has too few bytes.
        """
        path = Path(str(self.secret).replace(PLACE, site)).expanduser()
        try:
            secret = read_bytes(path, MOST_SECRET_BYTES)
        except (OSError, Malformed) as error:
            why = getattr(error, "strerror", None) or str(error)
        else:
            why = "" if len(secret) >= LEAST_SECRET_BYTES else f"it has {len(secret)} bytes"
        if why:
            raise BadInput(
                f"the secret of site {site} cannot be used: {path}: {why}",
                means=f"noise hides what a site has changed only if it follows from at least "
                f"{LEAST_SECRET_BYTES} bytes that no other site knows",
                do="write it once, for all machines of the site: "
                f"(umask 077; head -c 32 /dev/urandom > {path})",
            )
        return hashlib.sha256(site.encode() + b"\0" + secret).digest()


def check_privacy(privacy: Privacy, *, is_bound: bool, shared: Iterable[str]) -> None:
    """Refuse privacy that cannot be kept.

    Args:
        is_bound: each site has data of its own.
        shared: the names of tensors that virtual ranks send besides their differences.

    Raises:
        BadInput: a number is invalid, or something would leave the site without noise.
    """
    if not isinstance(privacy, Privacy):
        raise BadInput(
            f"run.rounds was given an invalid privacy: {describe_value(privacy)}",
            means="privacy says how differences are clipped, and how much noise they get",
            do="pass privacy=elastane.Privacy(clip=1.0, noise=4.0, secret='site.secret')",
        )
    for name, most in (("clip", math.inf), ("noise", math.inf), ("delta", 1.0)):
        value = to_number(getattr(privacy, name))
        if value is None or not 0 < value < most:
            raise BadInput(
                f"Privacy was given an invalid {name}: {describe_value(getattr(privacy, name))}",
                means=f"it is a number above 0{'' if math.isinf(most) else ' and below 1'}",
                do="pass for example clip=1.0, noise=4.0, delta=1e-5",
            )
    if not is_bound:
        raise BadInput(
            "run.rounds was given privacy= with one dataset",
            means="every site reads all of it, so there is nothing to hide from one",
            do='bind the data to sites: run.rounds({"eu-1": ..., "us-1": ...}, ..., privacy=...)',
        )
    for name in shared:
        raise BadInput(
            f"run.rounds was given privacy=, and a round may change {name}",
            means="it would leave the site without noise",
            do="use a model without such buffers, register constant ones with persistent=False, and leave "
            "inner_state out",
        )


def count_uses(plan: BatchPlan, site: SiteName, length: int) -> int:
    """Return the most differences that depend on one sample of a site in the whole run.

    That are the epochs that its virtual ranks begin: the one that reads fewest samples of an epoch begins
    most. A site that is left out of rounds begins fewer.

    Args:
        length: the samples of the site.
    """
    ranks = plan.rank_sites.count(site)
    rounds = plan.steps - plan.began_at.step
    epochs = -(-rounds * plan.samples_per_rank // (length // ranks))
    return min(epochs, rounds * ranks)


def describe_privacy(privacy: Privacy, uses: int, absent: AbsentRule) -> str:
    """Return the guarantee for a sample as a sentence without a dot."""
    epsilon = privacy.compute_epsilon(uses)
    unless = " unless its site is lost within a round" if absent == "skip" else ""
    return (
        f"differences are clipped to {privacy.clip:g} and get noise of {privacy.noise:g} times that; each "
        f"sample is in at most {uses} of them{unless}: epsilon {epsilon:.2f} at delta {privacy.delta:g}"
    )
