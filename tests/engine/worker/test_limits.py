from stentor.engine.worker.limits import limits_of, with_limits
from stentor.protocols.ipc.config import StepLimits, WorkerConfig


def test_what_the_operator_left_open_suits_the_device() -> None:
    assert limits_of(with_limits(WorkerConfig("m"), "cpu")) == StepLimits(16, 128, 2048, 512, 512)
    assert limits_of(with_limits(WorkerConfig("m"), "cuda")) == StepLimits(64, 256, 2048, 2048, 2048)


def test_what_the_operator_named_stays() -> None:
    config = WorkerConfig("m", block_size=16, max_num_seqs=3)
    assert limits_of(with_limits(config, "cuda")) == StepLimits(16, 3, 2048, 2048, 2048)
