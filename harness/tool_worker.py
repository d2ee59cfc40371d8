"""Keep guidellm or lm-eval loaded in one process, so that a measurement does not pay for its start.

`python tool_worker.py guidellm|lm-eval` reads one JSON object a line from standard input, does what it
says with the tool's own code, and answers with one JSON object a line. Loading either tool takes more CPU
time than most of the phases that are measured with it. What the tools print goes to standard error.

It is run as a file and imports nothing of the harness: guidellm's own workers load it again.
"""

import importlib.metadata
import json
import os
import random
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

Request = Mapping[str, Any]
Tool = Callable[[Request], None]

SEED: Final = 42


def load_guidellm() -> Tool:
    """Import guidellm and return a function that runs its command line, given as `argv`."""
    import multiprocessing  # noqa: PLC0415 - each tool is loaded by the worker that runs it

    os.environ["GUIDELLM__MP_CONTEXT_TYPE"] = "forkserver"
    multiprocessing.set_forkserver_preload(["guidellm.scheduler.worker", "guidellm.backends.openai"])
    import guidellm.benchmark  # noqa: PLC0415 - loaded lazily otherwise, in the first measurement
    from guidellm.__main__ import cli  # noqa: PLC0415

    assert guidellm.benchmark

    def run(request: Request) -> None:
        cli.main(args=list(request["argv"]), prog_name="guidellm", standalone_mode=False)

    return run


def _catalogue_of_local_data(catalogue: Path, task: str, data_dir: str) -> Path:
    """Return a directory with the same task whose documents come from a local directory."""
    directory = Path.cwd() / f"{task}-local"
    directory.mkdir(exist_ok=True)
    task_file = {"include": str(catalogue / f"{task}.yaml"), "task": task, "dataset_path": data_dir}
    (directory / f"{task}.yaml").write_text(json.dumps(task_file), encoding="utf-8")
    return directory


def load_lm_eval() -> Tool:
    """Import lm-eval and return a function that evaluates one task against a server.

    The documents of a task are made once and asked of every server. The rest of lm-eval's catalogue, of
    several thousand files, is not read.
    """
    import lm_eval  # noqa: PLC0415 - each tool is loaded by the worker that runs it
    import numpy as np  # noqa: PLC0415
    from lm_eval.api.registry import get_model  # noqa: PLC0415
    from lm_eval.evaluator import evaluate  # noqa: PLC0415
    from lm_eval.models import openai_completions  # noqa: PLC0415 - registers local-completions
    from lm_eval.tasks import TaskManager  # noqa: PLC0415

    assert openai_completions
    loaded_tasks: dict[str, Any] = {}
    catalogues = Path(lm_eval.__file__).parent / "tasks"

    def load(request: Request) -> Any:  # noqa: ANN401 - lm-eval's own mapping
        key = json.dumps(
            [request[name] for name in ("task", "sequence_tokens", "tokenizer", "data_dir", "text")]
        )
        if key not in loaded_tasks:
            catalogue = catalogues / request["catalogue"]
            if request["data_dir"]:
                catalogue = _catalogue_of_local_data(catalogue, request["task"], request["data_dir"])
            random.seed(SEED)
            np.random.seed(SEED)  # noqa: NPY002 - lm-eval's generators draw from it
            manager = TaskManager(
                include_path=str(catalogue),
                include_defaults=False,
                metadata={
                    "max_seq_lengths": [request["sequence_tokens"]],
                    "tokenizer": request["tokenizer"],
                },
            )
            loaded = manager.load([request["task"]])
            for task in loaded["tasks"].values():
                # Of RULER. Lists of words that have no room for one are asked, and cannot be scored.
                if not all(document.get("outputs", True) for document in task.eval_docs):
                    raise ValueError(
                        f"{request['task']} makes documents without an answer for "
                        f"{request['sequence_tokens']} tokens; ask for longer ones"
                    )
                task.set_config(key="num_fewshot", value=request["examples"])
                if request["text"]:
                    task.set_config(key="doc_to_text", value=request["text"])
            loaded_tasks[key] = loaded
        return loaded_tasks[key]

    def run(request: Request) -> None:
        loaded = load(request)
        if "samples_path" not in request:
            return
        for task in loaded["tasks"].values():
            task.set_config(key="generation_kwargs", value=dict(request["gen_kwargs"]), update=True)
            # Each run draws the examples anew; every server is to get the same.
            task.set_fewshot_seed(seed=SEED)
        # What `simple_evaluate` does beside this is mostly to describe the machine: 14 s each time.
        model = get_model("local-completions").create_from_arg_obj(dict(request["model_args"]), {})
        results = evaluate(
            lm=model,
            task_dict=loaded,
            samples={request["task"]: request["documents"]},
            bootstrap_iters=0,
            log_samples=True,
        )
        with Path(request["samples_path"]).open("w", encoding="utf-8") as file:
            samples = cast("dict[str, Any]", results)["samples"][request["task"]]
            file.writelines(json.dumps(sample, default=str) + "\n" for sample in samples)

    return run


LOADERS: Final[Mapping[str, tuple[str, Callable[[], Tool]]]] = {
    "guidellm": ("guidellm", load_guidellm),
    "lm-eval": ("lm_eval", load_lm_eval),
}


def main(arguments: Sequence[str]) -> int:
    """Serve requests until standard input ends."""
    distribution, load = LOADERS[arguments[0]]
    # Whatever the tools or their children print must not get between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(**fields: object) -> None:
        answers.write(json.dumps(fields) + "\n")
        answers.flush()

    try:
        tool = load()
    except Exception as error:  # noqa: BLE001 - whatever is wrong with the tool, the harness says it
        traceback.print_exc()
        answer(ok=False, error=f"{type(error).__name__}: {error}")
        return 1
    answer(ok=True, version=importlib.metadata.version(distribution))
    for line in sys.stdin:
        try:
            tool(json.loads(line))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the harness decides what it means
            traceback.print_exc()
            answer(ok=False, error=f"{type(error).__name__}: {error}")
        else:
            answer(ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
