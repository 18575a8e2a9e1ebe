"""Scores a small task by lm-evaluation-harness' `local-completions`. Argument: the server's base URL. Prints the
accuracy, and each choice's log-likelihood, as JSON."""

import json
import sys

import lm_eval
from lm_eval.api.task import ConfigurableTask
from lm_eval.models.openai_completions import LocalCompletionsAPI

QUESTIONS = [
    {"question": "The river", "choices": [" rises", " sleeps"], "answer": 0},
    {"question": "A mill stands by", "choices": [" noon", " the river"], "answer": 1},
    {"question": "Two and two are", "choices": [" four", " a fish"], "answer": 0},
]


class Bytes(LocalCompletionsAPI):
    """The served tokenizer has a token for each byte."""

    def tok_encode(self, string, **_):
        return list(string.encode())

    @property
    def eot_token_id(self):
        return 0


class Little(ConfigurableTask):
    VERSION = 0

    def download(self, *_, **__):
        import datasets

        self.dataset = {"test": datasets.Dataset.from_list(QUESTIONS)}


task = Little(config={
    "task": "little", "dataset_path": "none", "output_type": "multiple_choice", "test_split": "test",
    "doc_to_text": "{{question}}", "doc_to_choice": "{{choices}}", "doc_to_target": "{{answer}}", "target_delimiter": "",
    "metric_list": [{"metric": "acc"}],
})
model = Bytes(
    model="random", base_url=sys.argv[1] + "/v1/completions", tokenizer_backend=None, max_length=96, batch_size=4,
)
# Without a library's tokenizer the harness would send text.
model.tokenizer, model.tokenized_requests = "bytes", True
results = lm_eval.simple_evaluate(model=model, tasks=[task], bootstrap_iters=0)
scores = [[answer[0][0] for answer in sample["resps"]] for sample in results["samples"]["little"]]
print(json.dumps({"accuracy": results["results"]["little"]["acc,none"], "scores": scores}))
