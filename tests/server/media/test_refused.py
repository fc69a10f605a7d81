"""Addresses in every disguise, each refused with a 400 that names the field, and before any connection."""

from collections.abc import Sequence

import pytest

from stentor.protocols.common.errors import BadRequest
from stentor.tests.server.media.forms import FORMS, METADATA, NAMES
from stentor.tests.server.media.web import PARAM, answer, fetcher, names, says, serving

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("url", FORMS, ids=ascii)
async def test_a_form_is_refused_and_the_field_named(url: str) -> None:
    with pytest.raises(BadRequest) as caught:
        await fetcher(opened=(), resolve=names(NAMES), timeout=60.0).fetch(url, PARAM)
    refusal = caught.value
    assert (refusal.status, refusal.param, refusal.code) == (400, PARAM, "media_refused")
    assert refusal.message.startswith(f"`{PARAM}`: ")
    assert "\n" not in refusal.message
    for secret in ("10.0.0", "192.168", METADATA, "secret", "/etc"):
        assert secret not in refusal.message


OPEN_HERE = {"https://127.0.0.1/", "https://127.0.0.1./"}
REDIRECTS = [
    form
    for form in FORMS
    if form.startswith("https:") and form not in OPEN_HERE and form.isascii() and not set(form) & set("\r\n\t\x00")
]


@pytest.mark.parametrize("url", REDIRECTS, ids=ascii)
async def test_a_form_is_refused_as_well_where_a_redirect_leads_to_it(url: str) -> None:
    async with serving(says(answer(status="302 Found", location=url))) as web:
        with pytest.raises(BadRequest) as caught:
            await fetcher(web, resolve=names(NAMES)).fetch(web.url(), PARAM)
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, PARAM, "media_refused")
    assert len(web.heads) == 1


@pytest.mark.parametrize("target", ["file:///etc/passwd", "data:text/plain,x", "ftp://public.test/", "gopher://x/"])
async def test_a_redirect_leads_nowhere_but_to_http(target: str) -> None:
    async with serving(says(answer(status="301 Moved", location=target))) as web:
        with pytest.raises(BadRequest, match=r"is not a whole URL|scheme") as caught:
            await fetcher(web, root="/").fetch(web.url(), PARAM)
    assert caught.value.code == "media_refused"


async def test_a_chain_of_redirects_is_checked_at_every_link_and_ends() -> None:
    async def chain(path: str, writer: object) -> None:
        count = int(path[1:])
        location = f"/{count - 1}" if count else f"http://127.0.0.2:{web.port}/secret"
        writer.write(answer(status="307 Temporary Redirect", location=location))  # type: ignore[attr-defined]

    async with serving(chain, host="0.0.0.0") as web:
        with pytest.raises(BadRequest, match="no address that this server may reach"):
            await fetcher(web).fetch(web.url("/2"), PARAM)
        assert [head.split(" ")[1] for head in web.heads] == ["/2", "/1", "/0"], "and 127.0.0.2 was not asked"
        with pytest.raises(BadRequest, match="redirects more than 3 times"):
            await fetcher(web).fetch(web.url("/99"), PARAM)
        assert len(web.heads) == 7


async def test_a_name_that_changes_its_mind_is_asked_once_and_taken_at_its_word() -> None:
    answers = [["127.0.0.1"], ["127.0.0.2"]]
    asked: list[str] = []

    async def rebinding(host: str, _port: int) -> Sequence[str]:
        asked.append(host)
        return answers[min(len(asked), len(answers)) - 1]

    async with serving(says(answer(b"public", content_length="6"))) as web:
        # the second answer has no server behind it: had it been asked for, there would be no content
        media = await fetcher(web, resolve=rebinding).fetch(web.url(host="rebind.test"), PARAM)
        assert (media.data, asked) == (b"public", ["rebind.test"])
        assert f"host: rebind.test:{web.port}\r\n" in web.heads[0]
        with pytest.raises(BadRequest, match="no address"):
            await fetcher(web, resolve=rebinding).fetch(web.url(host="rebind.test"), PARAM)
    assert len(web.heads) == 1


async def test_a_name_that_changes_its_mind_between_two_redirects_is_refused() -> None:
    answers = iter([["127.0.0.1"], ["127.0.0.2"]])

    async def rebinding(_host: str, _port: int) -> Sequence[str]:
        return next(answers)

    async with serving(says(answer(status="302 Found", location="/again")), host="0.0.0.0") as web:
        with pytest.raises(BadRequest, match="no address"):
            await fetcher(web, resolve=rebinding).fetch(web.url(host="rebind.test"), PARAM)
    assert len(web.heads) == 1


async def test_what_is_private_and_what_does_not_exist_are_told_alike() -> None:
    messages = set()
    for host in ("alias.test", "unknown.test", "empty.test", "metadata"):
        with pytest.raises(BadRequest) as caught:
            await fetcher(resolve=names(NAMES)).fetch(f"http://{host}/", PARAM)
        messages.add(caught.value.message)
    assert len(messages) == 1


@pytest.mark.parametrize(
    ("domains", "host", "open"),
    [
        (("example.com",), "example.com", True),
        (("example.com",), "EXAMPLE.com.", True),
        (("example.com",), "a.example.com", False),
        (("*.example.com",), "a.b.example.com", True),
        (("*.example.com",), "example.com", False),
        (("*.example.com",), "badexample.com", False),
        (("example.com",), "example.com.evil.test", False),
        (("example.com",), "127.0.0.1", False),
        (("example.com", "127.0.0.1"), "127.0.0.1", True),
    ],
)
async def test_only_hosts_that_are_listed_are_fetched_from(domains: tuple[str, ...], host: str, open: bool) -> None:
    async def resolve(_host: str, _port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    async with serving(says(answer(b"x"))) as web:
        fetch = fetcher(web, domains=domains, resolve=resolve).fetch(web.url(host=host), PARAM)
        if open:
            assert (await fetch).data == b"x"
        else:
            with pytest.raises(BadRequest, match="not among those"):
                await fetch
    assert len(web.heads) == open


async def test_http_is_closed_unless_it_is_opened_and_never_follows_on_https() -> None:
    with pytest.raises(BadRequest, match="use https"):
        await fetcher(allow_http=False).fetch("http://public.test/", PARAM)


async def test_a_private_network_is_open_only_to_who_opened_it_and_metadata_to_nobody() -> None:
    async with serving(says(answer(b"x"))) as web:
        with pytest.raises(BadRequest):
            await fetcher(web, opened=None).fetch(web.url(), PARAM)
        assert (await fetcher(web, opened=None, allow_private=True).fetch(web.url(), PARAM)).data == b"x"
    for host in (METADATA, "100.100.100.200", "[fd00:ec2::254]", "[fe80::1]", "0.0.0.0", "[::ffff:127.0.0.1]"):
        with pytest.raises(BadRequest, match="no address"):
            await fetcher(opened=None, allow_private=True).fetch(f"http://{host}/", PARAM)
