"""Other servers and libraries, measured beside Stentor in the same run."""


def main(argv: list[str]) -> int:
    """``stentor bench peers``: exit code 0 done, 1 failed while running, 2 used wrongly."""
    from .command import main as run  # late: the processes that this package starts need none of it

    return run(argv)
