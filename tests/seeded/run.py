"""Whether the tests find known defects: each patch is applied to a copy of the tree, and its tests must fail there.

``python -m tests.seeded.run [NUMBER …]``
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
TREE = HERE.parent.parent
PATCHES = sorted(HERE.glob("*/*.patch"), key=lambda path: path.name)
MODEL = "tests/model/test_crash_model.py"
LANES = "tests/unit/broker/produce/test_producer_limits.py::"
OFFSETS = "tests/unit/broker/consume/test_offsets.py::"
LOCKS = "tests/unit/broker/consume/test_locks.py::"
ORDERLY = "tests/unit/client/consume/test_orderly_locks.py::"
POP = "tests/unit/broker/features/pop/test_pop.py::"
RETRY = "tests/unit/broker/features/test_retry.py::"
STAGING = "tests/unit/broker/features/test_staging.py::"

# Every one of the tests named must fail with the patch; without it all pass.
FOUND_BY = {
    "01": (MODEL,),
    "02": ("tests/unit/replication/test_set_progress.py",),
    "03": (MODEL,),
    "04": (MODEL,),
    "05": (MODEL,),
    "06": ("tests/crash/test_replaced_files.py",),
    "07": ("tests/unit/replication/test_hostile_reports.py",),
    "08": ("tests/unit/replication/test_hostile_reports.py",),
    "09": (MODEL,),
    "10": ("tests/unit/client/consume/test_pull_consumer.py::test_seek_goes_anywhere_and_the_next_commit_follows",),
    "11": (
        "tests/unit/client/consume/push/test_push_consumer.py::test_one_slow_message_does_not_stop_the_others_and_holds_the_commit",
    ),
    "12": (
        "tests/crash/test_nth_call_failures.py",
        "tests/unit/store/log/test_files.py::test_the_first_failed_sync_fences_the_store",
    ),
    "13": (
        LANES + "test_a_batch_that_is_sent_again_in_a_forgotten_lane_is_an_error_by_name_and_a_fresh_one_is_stored",
        LANES + "test_what_was_forgotten_stays_known_through_a_snapshot_until_nobody_sends_it_again",
    ),
    "14": (
        "tests/unit/client/consume/test_pull_sharing.py::test_a_broken_session_goes_on_without_repeating_or_losing",
    ),
    "15": (
        "tests/model/test_election_data.py::test_nothing_acknowledged_is_lost",
        "tests/unit/replication/test_set_progress.py",
        "tests/unit/broker/group/test_leadership.py",
    ),
    "16": ("tests/crash/test_damaged_tail.py",),
    "17": (MODEL, "tests/crash/test_damaged_tail.py"),
    "18": (
        "tests/unit/broker/features/test_timers.py::test_a_run_is_finished_by_a_broker_with_other_limits_and_fewer_files",
    ),
    "19": (
        OFFSETS + "test_commits_and_groups_are_answered_and_shown_when_replicas_have_confirmed_them",
        OFFSETS + "test_what_a_new_master_has_found_in_its_log_is_shown_when_it_is_confirmed",
    ),
    "20": (
        RETRY + "test_a_repeated_call_stores_nothing_and_answers_the_same_also_at_the_next_master",
        RETRY + "test_a_call_that_was_cut_short_anywhere_is_finished_once",
    ),
    "21": (RETRY + "test_a_call_that_was_cut_short_anywhere_is_finished_once",),
    "22": (
        OFFSETS + "test_commits_and_groups_are_answered_and_shown_when_replicas_have_confirmed_them",
        OFFSETS + "test_what_a_new_master_has_found_in_its_log_is_shown_when_it_is_confirmed",
    ),
    "23": (MODEL, "tests/unit/store/recovery/test_forged_records.py"),
    "24": (
        "tests/crash/test_transactions_killed.py::test_a_kill_at_each_step_shows_no_half_forgets_none_and_commits_none_twice",
    ),
    "25": (
        "tests/unit/broker/features/test_transactions.py::test_a_half_is_seen_when_it_is_committed_and_never_when_it_is_rolled_back",
    ),
    "26": (
        "tests/unit/broker/features/test_timers.py::test_a_run_that_was_cut_short_between_two_topics_comes_once_to_each",
    ),
    "27": (
        LOCKS + "test_a_queue_whose_holders_session_ended_is_another_members_when_its_work_has_had_its_time",
        ORDERLY + "test_a_member_that_was_cut_off_in_its_work_keeps_the_queue_from_others_for_its_time",
    ),
    "28": (
        RETRY + "test_a_repeated_call_stores_nothing_and_answers_the_same_also_at_the_next_master",
        RETRY + "test_a_call_that_was_cut_short_anywhere_is_finished_once",
    ),
    "29": (RETRY + "test_the_answer_waits_until_the_copies_are_safe",),
    "30": (LOCKS + "test_a_new_master_grants_what_nobody_speaks_for_when_older_locks_have_ended",),
    "31": (POP + "test_the_next_master_knows_what_is_in_flight_and_what_was_acknowledged",),
    "32": (
        "tests/model/test_election_data.py::test_nothing_acknowledged_is_lost",
        "tests/unit/replication/test_sync_state_set.py",
        "tests/unit/broker/group/test_leadership.py",
    ),
    "33": ("tests/model/test_power_cut_snapshots.py", "tests/unit/broker/core/test_snapshots.py"),
    "34": (STAGING + "test_a_chunk_that_another_mastership_may_have_cut_off_is_not_answered_as_safe",),
    "35": ("tests/unit/broker/features/test_hostile_writers.py::test_a_drop_by_anybody_leaves_what_is_decided",),
}
SECONDS_MAX = 600


def main(numbers: list[str]) -> int:
    """0 when every defect asked for was found."""
    patches = [path for path in PATCHES if not numbers or path.name[:2] in numbers]
    missed = []
    with tempfile.TemporaryDirectory(prefix="penstock-seeded-") as directory:
        unchanged = Path(directory) / "unchanged"
        _copy_tree(unchanged)
        if why := _fails(unchanged, *{test: None for patch in patches for test in FOUND_BY[patch.name[:2]]}):
            raise SystemExit(f"a test fails in a copy without any patch: {why}")
        for patch in patches:
            copy = Path(directory) / patch.stem
            _copy_tree(copy)
            _check_import(copy)
            apart = os.environ | {"GIT_CEILING_DIRECTORIES": directory}  # whatever repository the copy may lie in
            subprocess.run(["git", "apply", str(patch)], cwd=copy, env=apart, check=True)
            for test in FOUND_BY[patch.name[:2]]:
                started = time.monotonic()
                why = _fails(copy, test)
                seconds = time.monotonic() - started
                print(f"{patch.stem}: {'found' if why else 'MISSED'} by {test} in {seconds:.0f} s  {why}", flush=True)
                missed += [] if why else [patch.name]
            shutil.rmtree(copy)
    return 1 if missed or not patches else 0


def _copy_tree(copy: Path) -> None:
    """The tree, with the compiled kernels of the files that no patch changes."""
    unwanted = (".git", ".venv*", ".demo", "*.egg-info", "results", ".hypothesis", ".pytest_cache")
    shutil.copytree(TREE, copy, symlinks=True, ignore=shutil.ignore_patterns(*unwanted))


def _check_import(copy: Path) -> None:
    """That tests in the copy test the copy."""
    command = [sys.executable, "-c", "import penstock.broker; print(penstock.broker.__file__)"]
    environment = os.environ | {"PYTHONPATH": str(copy / ".namespace")}
    found = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=True).stdout
    if not found.startswith(str(copy)):
        raise SystemExit(f"the copy is not what is tested: {found}")


def _fails(copy: Path, *tests: str) -> str:
    """The line that says how a test failed, and which; empty when all passed."""
    environment = os.environ | {"PYTHONPATH": str(copy / ".namespace")}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(
        command, cwd=copy, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(tests)} did not run: {done.stdout[-3000:]}{done.stderr[-3000:]}")
    told = [line for line in done.stdout.splitlines() if line.startswith(("E  ", "FAILED ", "ERROR "))]
    return f"{told[0][:200]}  {told[-1]}" if done.returncode else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
