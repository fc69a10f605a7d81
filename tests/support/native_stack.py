"""The native frames of a process that dies of a fault: ``faulthandler`` tells of Python's alone.

They are printed as ``library(+offset)``; ``objdump -d library`` shows what lies there. On x86-64 the registers and the
innermost frame's memory are printed too: what a wrong pointer held tells whose it was.
"""

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

_SOURCE: Final = r"""
#define _GNU_SOURCE
#include <execinfo.h>
#include <signal.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

static int told_to;
static struct sigaction before[64];

static void tell_words(const char *title, const unsigned long *words, unsigned count) {
    char line[18];
    if (write(told_to, title, strlen(title)) < 0)
        return;
    for (unsigned i = 0; i < count; i++) {
        line[16] = ' ';
        for (unsigned digit = 0; digit < 16; digit++)
            line[digit] = "0123456789abcdef"[words[i] >> (60 - 4 * digit) & 15];
        line[17] = '\n';
        if (write(told_to, line, i + 1 < count ? 17 : 18) < 0)
            return;
    }
}

static void tell(int number, siginfo_t *info, void *context) {
    static const char title[] = "Native stack of the thread that died:\n";
    void *frames[24];
    if (write(told_to, title, sizeof title - 1) > 0)
        backtrace_symbols_fd(frames, backtrace(frames, 24), told_to);
#ifdef __x86_64__
    const greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    tell_words("Registers, from r8 to r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp and rip:\n",
               (const unsigned long *)registers, 17);
    tell_words("Memory at rsp:\n", (const unsigned long *)registers[REG_RSP], 24);
#endif
    sigaction(number, &before[number], 0);
    raise(number); /* blocked until this returns; then faulthandler's turn */
}

void tell_of_faults(int file) {
    static const int numbers[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    void *frame;
    struct sigaction action;
    told_to = file;
    backtrace(&frame, 1); /* loads what it needs now: a handler must not */
    memset(&action, 0, sizeof action);
    action.sa_sigaction = tell;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (unsigned i = 0; i < sizeof numbers / sizeof *numbers; i++)
        sigaction(numbers[i], &action, &before[numbers[i]]);
}
"""


def make_teller(folder: Path) -> Callable[[int], object]:
    """What a process calls, after ``faulthandler.enable``, with the descriptor that its last words go to.

    Does nothing where there is no C compiler.
    """
    compiler = shutil.which("g++") or shutil.which("cc")
    if compiler is None:
        return lambda _: None
    source, library = folder / "native_stack.c", folder / "native_stack.so"
    source.write_text(_SOURCE)
    subprocess.run([compiler, "-x", "c", "-shared", "-fPIC", "-o", library, source], check=True, capture_output=True)
    tell = ctypes.CDLL(str(library)).tell_of_faults
    tell.argtypes, tell.restype = [ctypes.c_int], None
    return tell
