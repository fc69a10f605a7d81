"""What a running server says of itself."""

import httpx

from stentor.loadtest.serving.measure import parse_metrics, total


def metric(port: int, name: str) -> float:
    """The sum over all labels; ``stentor:`` goes without saying."""
    return metric_in(httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=60).text, name)


def metric_in(page: str, name: str) -> float:
    """The sum over all labels on a page that has been fetched. A metric that the server does not have is no 0."""
    known = f"stentor:{name.removesuffix('_count')}"
    assert f"{known} " in page or f"{known}{{" in page, f"no metric is called {name}"
    return total(parse_metrics(page), name)
