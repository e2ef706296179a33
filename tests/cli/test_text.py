"""Text models on the command line: a verdict, sentences in the report with nothing of them as markup, a scan, and plain refusals."""

import json
import re
from dataclasses import replace

import pytest
import torch

from leakgauge.audit import records
from leakgauge.audit.wording import case_sentence, explained
from leakgauge.channels import Gradient
from leakgauge.core import share
from leakgauge.integrations.language import load_language

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 96, "vocab_size": 300,
}  # fmt: skip
SENTENCES = ["<img src=x> & it's", "No one knows.", "Call at nine.", "I paid in cash.", "It is late."]
PLAN = """
from leakgauge.integrations.language import load_language


def victim():
    return load_language("llama.json")


def data():
    return ["Call at nine.", "I paid in cash.", "No."]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "llama.json").write_text(json.dumps(LLAMA))
    (tmp_path / "s.txt").write_text("\n".join(SENTENCES))
    (tmp_path / "audit.py").write_text(PLAN)
    return tmp_path


def test_sentences_get_a_verdict_and_stand_escaped_in_the_report(folder, leakgauge):
    done = leakgauge(
        "attack", "hf:llama.json", "--data", "s.txt", "--batch-size", "2", "--out", "r", "--json", "v.json"
    )
    assert done.code == 0, done.err
    assert "feasible" in done.out
    assert "2 of 2" in done.out
    (record,) = records.read(folder / "r")
    assert record.verdict.unit == "sentence"
    assert record.text.verdict.exact == 2
    assert "".join(record.text.sentences[0].truth) == SENTENCES[0]
    assert set(record.text.sentences[0].truth_marks) == {"placed"}
    assert record.certified == (True, True)
    assert record.raced[0].name == "token_spans"
    page = (folder / "r/report.html").read_text()
    shown = re.search(r'<dd class="tokens">(.*?)</dd>', page).group(1)
    assert "<img" not in page.replace("<img alt=", "")
    assert ">&lt;</span>" in shown
    assert "could reconstruct private sentences" in page
    assert "2 of 2 sentences pass every check; 2 certified exact" in page
    assert json.loads((folder / "v.json").read_text())["exit_code"] == 0


def test_noise_that_hides_everything_finds_nothing(folder, leakgauge):
    done = leakgauge(
        "attack", "hf:llama.json", "--data", "s.txt", "--defense", "gaussian_noise:relative=30", "--out", "r"
    )
    assert done.code == 0, done.err
    (record,) = records.read(folder / "r")
    assert record.status == "refused" or not record.outcome.leaks


def test_a_plan_file_names_model_and_sentences(folder, leakgauge):
    done = leakgauge("attack", "audit.py", "--attack", "token_spans", "--out", "r")
    assert done.code == 0, done.err
    (record,) = records.read(folder / "r")
    assert "".join(record.text.sentences[0].found) == "Call at nine."


def test_a_scan_says_that_prompts_leak_and_writes_rows(folder, leakgauge):
    done = leakgauge("scan", "hf:llama.json", "--data", "s.txt", "--cut", "1", "--out", "r")
    assert done.code == 0, done.err
    assert "float32: 100% of the tokens found" in done.out
    rows = [json.loads(line) for line in (folder / "r/prompts.jsonl").read_text().splitlines()]
    assert [row["protection"]["sent"] for row in rows[:3]] == ["float32", "bfloat16", "int8"]
    assert all(row["found_asked"] <= row["genie"] for row in rows if row["asked"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["attack", "hf:llama.json"], "reads text; give sentences"),
        (["attack", "hf:llama.json", "--data", "none.txt"], "no text file none.txt"),
        (["attack", "cnn", "--data", "s.txt"], "s.txt"),
        (["attack", "hf:llama.json", "--data", "s.txt", "--batch-size", "9"], "but the data holds 5"),
        (["audit", "hf:llama.json", "--data", "s.txt"], "reads text, and this command takes images"),
        (["scan", "hf:llama.json", "--data", "s.txt", "--cut", "body"], "number of blocks on the device"),
        (["scan", "hf:llama.json", "--data", "s.txt", "--cut", "9"], "after block 1 to 3, got 9"),
        (["scan", "hf:llama.json", "--data", "s.txt", "--epochs", "3"], "--epochs is for models of images"),
    ],
)
def test_refused(folder, leakgauge, words, said):
    done = leakgauge(*words, "--out", "r")
    assert done.code == 2
    assert said in " ".join(done.err.split())
    assert len(done.err.strip().splitlines()) == 1


def test_a_captured_update_of_a_text_model_is_judged_by_its_certificates(folder, leakgauge):
    language = load_language("llama.json")
    ids = language.ids(SENTENCES[:2])
    victim = language.victim(ids.shape[1])
    seen = share(victim, Gradient(), *language.private(ids, None))
    torch.save(dict(seen.signal), "client.pt")
    torch.save(victim.model.state_dict(), "server.pt")
    command = ("attack", "hf:llama.json", "--update", "client.pt", "--weights", "server.pt", "--batch-size", "2")
    command += ("--update-holds", "gradient")
    done = leakgauge(*command, "--out", "r")
    assert done.code == 0, done.err
    (record,) = records.read(folder / "r")
    assert (record.verdict.unit, record.verdict.certified, record.outcome.value) == ("sentence", 2, "feasible")
    assert not record.verdict.compared
    assert sorted(record.captured.sentences) == sorted(SENTENCES[:2])
    assert "Certified exact without the truth: 2 of 2 sentences." in done.out
    page = (folder / "r/report.html").read_text()
    assert "<img src=x>" not in page
    assert "could reconstruct private sentences" in page
    unsure = replace(record, verdict=None, certified=(False, False))
    assert "none of those that were read is certified" in case_sentence(unsure)
    assert [name for name, _ in explained(unsure)] == ["Sentence 1 (not certified)", "Sentence 2 (not certified)"]
    refused = leakgauge(*command, "--truth", "s.txt", "--out", "t")
    assert refused.code == 2
    assert "judged by their certificates" in refused.err
