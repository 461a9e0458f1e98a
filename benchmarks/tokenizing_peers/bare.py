"""TOKENIZER TEXTS.jsonl -> CPU and wall seconds of encode_batch_fast alone, on one thread, over all texts, as JSON."""

import json
import os
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file(sys.argv[1])
with open(sys.argv[2]) as stream:
    texts = [json.loads(line)["text"] for line in stream]
tokens = 0
encodings = []
cpu_before_s, before_s = time.process_time(), time.monotonic()
for first in range(0, len(texts), 256):  # what the batch before held is freed here, as in any loop over a corpus
    encodings = tokenizer.encode_batch_fast(texts[first : first + 256], add_special_tokens=False)
    tokens += sum(map(len, encodings))
spent = {"encode_cpu_s": time.process_time() - cpu_before_s, "encode_wall_s": time.monotonic() - before_s}
print(json.dumps({**{key: round(value, 3) for key, value in spent.items()}, "tokens": tokens}))
