"""Ctrl-C while something runs that Python cannot interrupt."""

import signal
import subprocess
import sys

import pytest

DEAF = """
import signal, sys, time
from kernelcg.cli.interrupts import ended_by_the_second
signal.signal(signal.SIGINT, lambda number, frame: None)  # as compiled code, which hears nothing
with ended_by_the_second(patience=0.1):
    print("begins", flush=True)
    for _ in range(600):
        time.sleep(0.1)
"""
ORDERLY = """
from kernelcg.cli.interrupts import ended_by_the_second
with ended_by_the_second():
    pass
print("goes on")
"""


def test_the_second_interrupt_ends_what_does_not_listen():
    with subprocess.Popen(
        [sys.executable, "-c", DEAF], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "begins\n"
        process.send_signal(signal.SIGINT)
        assert "Ctrl-C again ends it at once" in process.stderr.readline()
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=300) == 130


def test_what_ends_in_order_goes_on_afterwards():
    done = subprocess.run([sys.executable, "-c", ORDERLY], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "goes on\n")


@pytest.mark.parametrize("times", [1, 2])
def test_an_interrupt_that_python_hears_ends_in_order(times):
    code = DEAF.replace("lambda number, frame: None", "signal.default_int_handler").replace("0.1)", "30)", 1)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "begins\n"
        for _ in range(times):
            process.send_signal(signal.SIGINT)
        assert process.wait(timeout=300) in (1, 130, -signal.SIGINT)
