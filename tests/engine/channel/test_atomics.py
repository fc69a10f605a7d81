import mmap
import os
import subprocess
import sys

import pytest

from stentor.engine.channel import ChannelError
from stentor.engine.channel.atomics import LibraryAtomics, X86Atomics, machine_atomics
from stentor.tests.engine.channel import turns


def test_two_processes_that_agree_by_atomics_alone_are_never_in_each_others_way() -> None:
    rounds, fd, size = 1000, os.memfd_create("turns"), 8 * turns.WORDS * len(turns.KINDS)
    os.ftruncate(fd, size)
    memory = memoryview(mmap.mmap(fd, size))
    command = [sys.executable, "-P", "-m", turns.__name__, str(fd), str(rounds)]
    with subprocess.Popen(command, pass_fds=(fd,), stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"ready\n"
        turns.count(memory, 0, rounds)
    assert other.returncode == 0
    assert memory.cast("Q").tolist()[turns.COUNT :: turns.WORDS] == [2 * rounds] * len(turns.KINDS)
    os.close(fd)


def test_a_machine_whose_plain_moves_are_no_atomics_takes_them_from_a_library() -> None:
    assert isinstance(machine_atomics("x86_64"), X86Atomics)
    assert isinstance(machine_atomics("aarch64"), LibraryAtomics)


def test_a_machine_without_that_library_is_told_in_one_line_what_to_install() -> None:
    with pytest.raises(ChannelError, match=r"^[^\n]*of libno\.so\.1, [^\n]*install libatomic1 [^\n]*$"):
        LibraryAtomics("libno.so.1")
    with pytest.raises(ChannelError, match=r"^[^\n]*of libm\.so\.6, [^\n]*__atomic_load_8\)$"):
        LibraryAtomics("libm.so.6")


def test_words_that_are_not_there_or_no_longer_are_refused() -> None:
    atomics, words = LibraryAtomics(), memoryview(bytearray(16)).cast("Q")
    atomics.store(words, 1, 2**64 - 1)
    assert (atomics.load(words, 0), atomics.load(words, 1), words[1]) == (0, 2**64 - 1, 2**64 - 1)
    for index in (2, -1):
        with pytest.raises(ValueError, match=r"Buffer size|negative"):
            atomics.load(words, index)
    words.release()
    with pytest.raises(ValueError, match="released"):
        atomics.store(words, 0, 1)
