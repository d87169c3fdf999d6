"""python -m torch_tpu.aot run --topology v5e:2x2 [--cache FOLDER] [--launch-us 5] [--dry] [--report FILE] script.py [arguments]

Runs a script as it is, with values from the plugin that is here, while every program that it makes is also compiled for TPUs
that are not; a report comes at the end (docs/aot.md)."""

import argparse
import os
import sys


def main():
    parser = argparse.ArgumentParser(prog="python -m torch_tpu.aot", description=__doc__.split("\n\n")[1])
    words = parser.add_subparsers(dest="word", required=True)
    run = words.add_parser("run", help="run a script against a TPU that is not there")
    run.add_argument("--topology", required=True, help="such as v5e:2x2")
    run.add_argument("--cache", default="", help="folder for the executables (of each program, for that TPU)")
    run.add_argument("--launch-us", type=float, default=5.0, help="microseconds that launching one program takes; default 5")
    run.add_argument(
        "--dry", action="store_true", help="execute nothing: tensors take no memory, and values that are read are zeros"
    )
    run.add_argument(
        "--report",
        default="",
        help="write the report to this file; a page with pictures when its name ends in .html; default: stderr",
    )
    run.add_argument("script", help="a Python file")
    run.add_argument("arguments", nargs=argparse.REMAINDER)
    a = parser.parse_args()
    if not os.path.isfile(a.script):
        parser.error(f"there is no file {a.script}")
    from torch_tpu import aot

    try:
        aot.topology(a.topology)
    except (ValueError, RuntimeError) as error:
        parser.error(str(error))
    os.environ["TORCH_TPU_TOPOLOGY"] = a.topology
    os.environ["TORCH_TPU_AOT_LAUNCH_US"] = str(a.launch_us)
    os.environ["TORCH_TPU_AOT_DRY"] = str(int(a.dry))
    for name, value in (("TORCH_TPU_AOT_CACHE", a.cache), ("TORCH_TPU_AOT_REPORT", a.report)):
        if value:
            os.environ[name] = os.path.abspath(value)
    os.execv(sys.executable, [sys.executable, a.script, *a.arguments])  # noqa: S606


if __name__ == "__main__":
    main()
