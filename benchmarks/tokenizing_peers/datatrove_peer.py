"""TOKENIZER TEXTS.jsonl OUT -> datatrove's DocumentTokenizer in two processes, over the file cut in two halves."""

import sys
from pathlib import Path

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens.tokenizer import DocumentTokenizer

if __name__ == "__main__":
    out = Path(sys.argv[3])
    (out / "in").mkdir(parents=True)
    lines = Path(sys.argv[2]).read_bytes().splitlines(keepends=True)
    for number in range(2):
        half = lines[number * len(lines) // 2 : (number + 1) * len(lines) // 2]
        (out / "in" / f"{number}.jsonl").write_bytes(b"".join(half))
    LocalPipelineExecutor(
        pipeline=[
            JsonlReader(str(out / "in")),
            DocumentTokenizer(
                str(out / "tokens"),
                sys.argv[1],
                eos_token="<|endoftext|>",
                shuffle_documents=False,
                save_final_metadata=False,
            ),
        ],
        tasks=2,
        workers=2,
        logging_dir=str(out / "logs"),
    ).run()
    total = sum(file.stat().st_size for file in (out / "tokens").glob("*.ds")) // 2
    (out / "tokens_count").write_text(str(total))
