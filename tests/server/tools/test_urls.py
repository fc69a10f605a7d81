"""URLs in every disguise: refused before any connection, whatever the operator has opened."""

import pytest

from stentor.server.media.fetching.resolving import resolve
from stentor.server.media.refusal import Refusal
from stentor.server.tools.url_allowlist import ANY_HTTPS, UrlAllowlist
from stentor.tests.server.media.forms import FORMS, METADATA, NAMES
from stentor.tests.server.media.web import names


def test_the_table_is_long_enough_and_repeats_nothing() -> None:
    assert len(set(FORMS)) == len(FORMS) >= 40


@pytest.mark.anyio
@pytest.mark.parametrize("url", FORMS, ids=ascii)
async def test_a_form_is_refused_where_any_public_host_may_be_reached(url: str) -> None:
    with pytest.raises(Refusal) as caught:
        await UrlAllowlist([ANY_HTTPS], resolve=names(NAMES)).place(url)
    for secret in ("10.0.0", "192.168", METADATA, "secret", "/etc", "\n"):
        assert secret not in str(caught.value)


@pytest.mark.anyio
async def test_what_is_private_and_what_does_not_exist_are_told_alike() -> None:
    messages = set()
    for host in ("alias.test", "unknown.test", "empty.test", "metadata"):
        with pytest.raises(Refusal) as caught:
            await UrlAllowlist([ANY_HTTPS], resolve=names(NAMES)).place(f"https://{host}/")
        messages.add(str(caught.value))
    assert len(messages) == 1


@pytest.mark.anyio
async def test_the_real_resolver_gives_every_address_once() -> None:
    found = await resolve("localhost", 443)
    assert "127.0.0.1" in found or "::1" in found
    assert len(set(found)) == len(found)
