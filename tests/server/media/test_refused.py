"""Addresses in every disguise, each refused with a 400 that names the field, and before any connection."""

from collections.abc import Sequence

import pytest

from stentor.protocols.common.errors import BadRequest
from stentor.tests.server.media.web import PARAM, PUBLIC, answer, fetcher, names, says, serving

pytestmark = pytest.mark.anyio

METADATA = "169.254.169.254"
FORMS = [
    # other spellings of 127.0.0.1
    "http://127.0.0.1/",
    "http://2130706433/",
    "http://0x7f000001/",
    "http://0x7f.0.0.1/",
    "http://0x7f.1/",
    "http://0177.0.0.1/",
    "http://017700000001/",
    "http://127.1/",
    "http://127.0.1/",
    "http://127.0.0.01/",
    "http://127.0.0.1./",
    "http://127.0.0.1../",
    "http://00000127.0.0.1/",
    "http://127.0.0.1.1/",
    "http://256.0.0.1/",
    "http://0/",
    "http://0x/",
    "http://0.0.0.0/",
    "http://127.255.255.254/",
    "http://\uff11\uff12\uff17.\uff10.\uff10.\uff11/",
    "http://127。0。0。1/",
    "http://①②⑦.0.0.1/",
    "http://127.0.0.\u00ad1/",
    "http://٣.0.0.1/",
    "http://127.0.0.1%2f@example.com/",
    "http://127%2e0%2e0%2e1/",
    # version 6
    "http://[::1]/",
    "http://[::]/",
    "http://[0:0:0:0:0:0:0:1]/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:7f00:1]/",
    "http://[::ffff:93.184.215.14]/",
    "http://[::127.0.0.1]/",
    "http://[::ffff:0:127.0.0.1]/",
    "http://[64:ff9b::127.0.0.1]/",
    "http://[64:ff9b::a9fe:a9fe]/",
    "http://[64:ff9b:1::7f00:1]/",
    "http://[2002:7f00:1::]/",
    "http://[2002:5db8:d70e::1]/",
    "http://[2001:0:53aa:64c:0:fbff:80ff:fffe]/",
    "http://[fe80::1]/",
    "http://[fe80::1%25eth0]/",
    "http://[fe80::1%eth0]/",
    "http://[2606:4700::1111%251]/",
    "http://[fec0::1]/",
    "http://[fc00::1]/",
    "http://[fd00:ec2::254]/",
    "http://[fd20:ce::254]/",
    "http://[ff02::1]/",
    "http://[2001:db8::1]/",
    "http://[3fff::1]/",
    "http://[100::1]/",
    "http://[::1/",
    "http://[127.0.0.1]/",
    "http://[v1.x]/",
    # networks
    "http://10.0.0.1/",
    "http://172.16.0.1/",
    "http://172.31.255.255/",
    "http://192.168.1.1/",
    "http://100.64.0.1/",
    "http://169.254.1.1/",
    "http://192.0.0.8/",
    "http://192.0.0.192/",
    "http://192.0.2.1/",
    "http://192.88.99.1/",
    "http://198.18.0.1/",
    "http://198.51.100.1/",
    "http://203.0.113.1/",
    "http://224.0.0.1/",
    "http://240.0.0.1/",
    "http://255.255.255.255/",
    # metadata
    f"http://{METADATA}/latest/meta-data/",
    "http://2852039166/",
    "http://0xa9fea9fe/",
    "http://100.100.100.200/",
    "http://168.63.129.16/",
    "http://metadata/",
    "http://metadata.google.internal/",
    # names
    "http://localhost/",
    "http://localhost./",
    "http://LOCALHOST/",
    "http://mixed.test/",
    "http://alias.test/",
    "http://mapped.test/",
    "http://scoped.test/",
    "http://empty.test/",
    "http://unknown.test/",
    "http://nonsense.test/",
    "http://a..test/",
    "http://-a.test/",
    "http://" + "a" * 64 + ".test/",
    "http://" + "a." * 130 + "test/",
    "http://xn--/",
    "http://\u200b/",
    # users, backslashes, spaces, ports
    "http://public.test@127.0.0.1/",
    "http://127.0.0.1@public.test/",
    "http://user:secret@public.test/",
    "http://@public.test/",
    "http://public.test:80@127.0.0.1/",
    "http://public.test\\@127.0.0.1/",
    "http:\\\\127.0.0.1\\",
    "http:/\\127.0.0.1/",
    "http:/127.0.0.1/",
    "http:127.0.0.1/",
    "http:///127.0.0.1/",
    "//127.0.0.1/",
    "127.0.0.1",
    "http://public.test /",
    " http://public.test/",
    "http://public.test/\r\nHost: 127.0.0.1",
    "http://public.test/\t",
    "ht\ntp://public.test/",
    "http://public.test\x00.test/",
    "http://public.test/\ud800",
    "http://public.test:/",
    "http://public.test:0/",
    "http://public.test:65536/",
    "http://public.test:22/",
    "http://public.test:6379/",
    "http://public.test:\uff18\uff10/",
    "http://public.test:80:80/",
    "http://public.test:+80/",
    "http://?x",
    "http://#x",
    "http://",
    "",
    "http://public.test/" + "x" * 9000,
    # schemes
    "ftp://public.test/",
    "gopher://public.test/",
    "ws://public.test/",
    "javascript:alert(1)",
    "file:///etc/passwd",
    "FILE:///etc/passwd",
    "file://public.test/etc/passwd",
    "unix:/run/docker.sock",
    "http+unix://%2Frun%2Fdocker.sock/",
    "jar:http://public.test/!/",
]
NAMES: dict[str, Sequence[str]] = {
    "public.test": [PUBLIC],
    "localhost": ["127.0.0.1", "::1"],
    "metadata": [METADATA],
    "metadata.google.internal": [METADATA],
    "mixed.test": [PUBLIC, "2606:4700::1111", "10.0.0.7"],
    "alias.test": ["192.168.0.1"],
    "mapped.test": ["::ffff:10.0.0.1"],
    "scoped.test": ["fe80::1%2"],
    "nonsense.test": ["not an address"],
    "empty.test": [],
}


def test_the_table_is_long_enough_and_repeats_nothing() -> None:
    assert len(set(FORMS)) == len(FORMS) >= 40


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


OPEN_HERE = {"http://127.0.0.1/", "http://127.0.0.1./"}
REDIRECTS = [
    form
    for form in FORMS
    if form.startswith("http:") and form not in OPEN_HERE and form.isascii() and not set(form) & set("\r\n\t\x00")
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
        with pytest.raises(BadRequest, match="no address that this server may fetch from"):
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
