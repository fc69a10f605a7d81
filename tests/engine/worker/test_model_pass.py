"""A pass over rows in the order that a device computes them in."""

import pytest
import torch

from stentor.engine.layers.forward_batch import ForwardBatch
from stentor.engine.layers.linear.layer_context import LayerContext
from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.loading.weights import iterate_weights
from stentor.engine.models.decoder import Decoder
from stentor.engine.worker.caches import allocate_caches
from stentor.engine.worker.passes.model_pass import ModelPass
from stentor.engine.worker.rows.rows import RowTable
from stentor.kernels import force_variant
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import NewRow, RowStep
from stentor.tests.parity import tiny

CPU = torch.device("cpu")
BLOCK = 16


class _Watched(Decoder):
    decodes: tuple[int, int, int | None] = (0, 0, None)

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        (attention,) = batch.attention
        self.decodes = attention.decode_rows, attention.decode_query_len, attention.ragged_tokens
        return super().forward(batch)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> _Watched:
    folder = tmp_path_factory.mktemp("model")
    tiny.make("llama", folder)
    checkpoint = open_checkpoint(folder)
    found = _Watched(checkpoint.decoder, LayerContext(CPU, torch.float32, True), 96)
    found.load(iterate_weights(checkpoint, torch.float32))
    return found


def test_a_device_computes_rows_with_drafts_before_prompts_and_answers_in_the_plans_order(model: _Watched) -> None:
    table = RowTable(3, 96, BLOCK)
    for slot, length in enumerate((40, 30, 20)):
        blocks = [3 * slot, 3 * slot + 1, 3 * slot + 2]
        tokens = [(7 * at + slot) % tiny.VOCAB for at in range(length)]
        table.add(NewRow(slot, tokens, length, SamplingParams(max_tokens=1), 0, blocks))
    rows = [RowStep(0, 0, 40, [], True), RowStep(1, 0, 30, [], False), RowStep(2, 0, 20, [], True, 3)]
    rows[2] = RowStep(2, 16, 4, [], True, 3)

    def run(*, decodes_first: bool) -> torch.Tensor:
        caches = allocate_caches(model.config.cache_groups, 9, BLOCK, CPU, torch.float32)
        passes = ModelPass(model, caches, table, CPU, None)
        passes._decodes_first = decodes_first
        with force_variant("reference"):
            passes.run([RowStep(2, 0, 16, [], False)])
            logits = passes.run(rows).logits
        assert logits is not None
        return logits

    expected = run(decodes_first=False)
    as_planned = model.decodes
    assert expected.shape == (5, tiny.VOCAB)  # of the first row, and of the last with its drafts
    torch.testing.assert_close(run(decodes_first=True), expected, rtol=1e-5, atol=1e-5)
    assert (as_planned, model.decodes) == ((0, 1, None), (1, 4, 4))


def test_rows_come_by_what_their_products_expand(model: _Watched) -> None:
    """Sampled tokens and short prompts expand nothing, longer prompts dense layers, still longer ones experts too, if a
    chunk gives these enough rows."""
    table = RowTable(5, 96, BLOCK)
    lengths = (48, 47, 31, 32, 49)
    for slot, length in enumerate(lengths):
        table.add(
            NewRow(slot, [1] * length, length, SamplingParams(max_tokens=9), 0, list(range(6 * slot, 6 * slot + 6)))
        )
    passes = ModelPass(
        model, allocate_caches(model.config.cache_groups, 30, BLOCK, CPU, torch.float32), table, CPU, None
    )
    rows = [RowStep(slot, 0, length, [], True) for slot, length in enumerate(lengths[:4])]
    rows.append(RowStep(4, 49, 1, [], True))
    passes._expands, passes._tokens_per_row = True, 1.5
    assert passes._order(rows) == ([2, 4, 1, 3, 0], (2, 4))
    for chunk, order, forms in (
        (24, [2, 4, 1, 3, 0], (2, 4)),
        (23, [2, 4, 0, 1, 3], (2, 5)),
        (15, [0, 1, 2, 3, 4], (5, 5)),
    ):
        table._chunk = chunk  # in which an expert has 16 rows, 15 and 10
        assert passes._order(rows) == (order, forms)
    passes._expands = False
    assert passes._order(rows) == ([0, 1, 2, 3, 4], (5, 5))
