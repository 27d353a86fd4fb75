"""Passwords and keys in URLs are found, and never shown."""

import pytest

from elastane.cli.runs.run_spec import CHECKPOINT_OPTIONS
from elastane.common.errors import BadInput
from elastane.common.url_credentials import check_no_credentials, hide_credentials
from elastane.run.checkpoints.storage.urls import open_storage
from elastane.run.machines.claims.urls import open_claim_list
from elastane.run.nouns.checkpoint_policy import CheckpointSettings, parse_checkpoint_policy

WITH_CREDENTIALS = (
    "s3://AKIA:Pa55word@bucket/path",
    "s3://:Pa55word@bucket",
    "ftp://me:Pa55@word@host/path",
    "simplecache::s3://AKIA:Pa55word@bucket/path",
    "az://container/path?sv=2022&sig=Pa55word",
    "https://host/path?X-Amz-Signature=Pa55word&x=1",
    "https://Pa55word@host/path",
    "https://host/path?access_token=Pa55word",
)


@pytest.mark.parametrize("url", WITH_CREDENTIALS)
def test_a_url_with_credentials_is_refused_without_showing_them(url) -> None:
    settings = CheckpointSettings(url=url)
    for refuse in (
        lambda: check_no_credentials(url),
        lambda: open_storage(url),
        lambda: open_claim_list(url),
        lambda: parse_checkpoint_policy(settings),
        lambda: parse_checkpoint_policy(settings, CHECKPOINT_OPTIONS),
    ):
        with pytest.raises(BadInput, match="has credentials") as refused:
            refuse()
        assert "Pa55" not in str(refused.value)
    assert "Pa55" not in hide_credentials(f"cannot read {url}: no")


@pytest.mark.parametrize(
    "url",
    [
        "checkpoints",
        "/data/a:b@c/d",
        "s3://bucket/path@v2",
        "s3://bucket/a:b@c",
        "sftp://me@host:22/path",
        "https://host:443/a?page=2",
        "gs://bucket/monkey",
    ],
)
def test_another_url_is_accepted_and_shown(url) -> None:
    check_no_credentials(url)
    assert hide_credentials(url) == url
