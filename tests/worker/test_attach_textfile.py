"""Metrics for Prometheus, read by its own parser."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from nccltune.worker.attach.textfile import Metric, rendered, replace_file

SPEED = Metric("nccltune_samples_per_second", "Training speed, samples/s.", 3412.25)
STEPS = Metric("nccltune_steps_total", "Steps of the job.", 1200, "counter")


def test_what_the_parser_reads() -> None:
    hostile = 'a "quoted" \\name\\n\nwith {braces}, commas=1 and \u00fc'
    labels = {"study": hostile, "model": ""}
    found = {f.name: f for f in text_string_to_metric_families(rendered([SPEED, STEPS], labels))}
    assert set(found) == {"nccltune_samples_per_second", "nccltune_steps"}
    speed = found["nccltune_samples_per_second"]
    assert (speed.type, speed.documentation) == ("gauge", "Training speed, samples/s.")
    (sample,) = speed.samples
    assert (sample.value, sample.labels) == (3412.25, labels)
    assert sample.timestamp is None  # the node exporter refuses files with timestamps
    steps = found["nccltune_steps"]
    assert (steps.type, steps.samples[0].name) == ("counter", "nccltune_steps_total")


def test_without_labels_there_are_no_braces() -> None:
    (family,) = text_string_to_metric_families(rendered([SPEED], {}))
    assert (family.samples[0].value, family.samples[0].labels) == (3412.25, {})


def test_the_file_is_replaced_whole_and_readable_for_others(tmp_path: Path) -> None:
    file = tmp_path / "job.prom"
    file.write_text("old")
    before = file.stat().st_ino
    mask = os.umask(0o022)
    try:
        replace_file(str(file), "new\n")
    finally:
        os.umask(mask)
    assert file.read_text() == "new\n"
    assert file.stat().st_ino != before and file.stat().st_mode & 0o777 == 0o644
    assert os.listdir(tmp_path) == ["job.prom"]


def test_what_cannot_be_written_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "job.prom"
    file.mkdir()
    with pytest.raises(OSError):
        replace_file(str(file), "new\n")
    assert os.listdir(tmp_path) == ["job.prom"]
    with pytest.raises(FileNotFoundError):
        replace_file(str(tmp_path / "no" / "job.prom"), "new\n")


def test_a_link_in_its_way_is_not_followed(tmp_path: Path) -> None:
    file, other = tmp_path / "job.prom", tmp_path / "others"
    file.write_text("old")
    other.write_text("theirs")
    (tmp_path / f".job.prom.{os.getpid()}.tmp").symlink_to(other)
    with pytest.raises(OSError, match="File exists"):
        replace_file(str(file), "new")
    assert (file.read_text(), other.read_text()) == ("old", "theirs")
    replace_file(str(file), "new")  # the link is gone
    assert file.read_text() == "new"


def test_where_nothing_more_fits_the_old_file_stays(tmp_path: Path) -> None:
    file = tmp_path / "job.prom"
    file.write_text("old")
    code = (
        "import resource, sys\n"
        "from nccltune.worker.attach.textfile import replace_file\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (8, 8))\n"
        "try:\n    replace_file(sys.argv[1], 'longer than eight bytes')\n"
        "except OSError as error:\n    print(error.strerror)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(file)], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "File too large\n", "")
    assert file.read_text() == "old" and os.listdir(tmp_path) == ["job.prom"]
