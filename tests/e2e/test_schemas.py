"""Some of the schemas of ``make schemas`` through the real server at a high temperature."""

import asyncio

from stentor.loadtest.server_process import ServerProcess
from stentor.tests.e2e.conftest import NAME
from stentor.tests.e2e.schema_proof import ENDED_SHARE, prove
from stentor.tests.server.grammar.schemas import all_schemas


def test_what_ends_by_itself_validates(server: ServerProcess) -> None:
    schemas = all_schemas()[3::11]
    proof = asyncio.run(prove(f"http://127.0.0.1:{server.port}/v1", NAME, schemas, seed=7))
    assert proof.schemas == len(schemas) >= 20
    assert proof.invalid == []
    assert proof.ended_share >= ENDED_SHARE
