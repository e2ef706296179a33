"""Text models on the command line: a verdict, sentences in the report with nothing of them as markup, a scan, and plain refusals."""

import json
import re

import onnxruntime
import pytest
import torch
from safetensors.torch import save_file

from leakgauge.audit import records
from leakgauge.integrations.language import Bytes, load_language

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


def test_an_audit_of_text_answers_what_updates_give_away(folder, leakgauge):
    done = leakgauge(
        "audit", "hf:llama.json", "--data", "s.txt", "--defense", "gaussian_noise:relative=30", "--budget", "40s", "--out", "r",
        "--json", "v.json",
    )  # fmt: skip
    assert done.code == 0, done.err
    found = {(one.case.batch_size, one.case.defenses): one for one in records.read(folder / "r") if one.change is None}
    assert found[1, ()].text.verdict.exact == 1
    assert found[1, ()].case.attack == "sentences"
    assert found[1, ()].raced[0].name == "token_spans"
    (hidden,) = (one for (size, guards), one in found.items() if size == 1 and guards)
    assert hidden.status == "refused" or not hidden.outcome.leaks
    assert "split: refused: not asked about text models" in done.out
    page = (folder / "r/report.html").read_text()
    assert '<dd class="tokens">' in page
    assert "Do not share plain updates" in page


def test_a_plan_file_audits_text(folder, leakgauge):
    done = leakgauge("audit", "audit.py", "--budget", "30s", "--batch-size", "1", "--out", "r")
    assert done.code == 0, done.err
    assert any(one.text is not None and one.text.verdict.exact == 1 for one in records.read(folder / "r"))


def test_a_scan_says_that_prompts_leak_and_writes_rows(folder, leakgauge):
    done = leakgauge("scan", "hf:llama.json", "--data", "s.txt", "--cut", "1", "--out", "r")
    assert done.code == 0, done.err
    assert "float32: 100% of the tokens found" in done.out
    rows = [json.loads(line) for line in (folder / "r/prompts.jsonl").read_text().splitlines()]
    assert [row["protection"]["sent"] for row in rows[:3]] == ["float32", "bfloat16", "int8"]
    assert all(row["found_asked"] <= row["genie"] for row in rows if row["asked"])
    assert bytes(one - 2 for one in rows[0]["recovered"][0]).decode() == SENTENCES[-1]
    page = (folder / "r/report.html").read_text()
    assert page.count('class="placed" title="found in its place"') >= len(SENTENCES[-1])
    assert "<script" not in page


def test_the_halves_of_a_language_model_are_written_and_are_the_model(folder, leakgauge):
    done = leakgauge("scan", "hf:llama.json", "--data", "s.txt", "--cut", "1", "--out", "r", "--export", "halves")
    assert done.code == 0, done.err
    model = load_language("llama.json").model
    edge, cloud = (torch.export.load(folder / f"halves/{half}.pt2").module() for half in ("edge", "cloud"))
    length = json.loads((folder / "halves/split.json").read_text())["tensors"][0]["shape"][0]
    ids = torch.randint(2, 200, (2, length), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(cloud(*edge(ids)), model(ids), atol=1e-5, rtol=1e-4)
    sent = [ids.numpy()]
    for half in ("edge", "cloud"):
        session = onnxruntime.InferenceSession(folder / f"halves/{half}.onnx")
        names = [one.name for one in session.get_inputs()]
        sent = session.run(None, dict(zip(names, sent, strict=True)))
    torch.testing.assert_close(torch.from_numpy(sent[0]), model(ids), atol=1e-4, rtol=1e-3)


def test_tokens_of_prompts_stand_escaped_in_the_report(folder, leakgauge):
    (folder / "s.txt").write_text("\n".join([*SENTENCES[1:], SENTENCES[0]]))
    done = leakgauge("scan", "hf:llama.json", "--data", "s.txt", "--cut", "1", "--out", "r")
    assert done.code == 0, done.err
    page = (folder / "r/report.html").read_text()
    assert "<img" not in page
    assert ">&lt;</span>" in page


@pytest.fixture
def sent(folder):
    """What a client's own script would save, with the names of Hugging Face: a gradient, and the difference of one step."""
    inner = load_language("llama.json").model.model
    ids = torch.tensor([Bytes().encode(SENTENCES[2])])
    inner(input_ids=ids, labels=ids).loss.backward()
    gradients = {name: p.grad.clone() for name, p in inner.named_parameters()}
    before = {name: p.detach().clone() for name, p in inner.named_parameters()}
    torch.optim.SGD(inner.parameters(), lr=0.1).step()
    save_file(gradients, "gradient.safetensors")
    save_file({name: p.detach() - before[name] for name, p in inner.named_parameters()}, "delta.safetensors")
    save_file(before, "before.safetensors")
    (folder / "truth.txt").write_text(SENTENCES[2])
    return folder


def test_a_captured_gradient_shows_the_sentence_without_the_truth(sent, leakgauge):
    words = ["--update", "gradient.safetensors", "--update-holds", "gradient", "--weights", "before.safetensors"]
    done = leakgauge("attack", "hf:llama.json", *words, "--out", "r")
    assert done.code == 0, done.err
    (record,) = records.read(sent / "r")
    (found,) = record.text.sentences
    assert SENTENCES[2].startswith("".join(found.found))  # the last token of a sentence gets no gradient here
    assert len(found.found) >= len(SENTENCES[2]) - 1
    assert found.truth == ()
    page = (sent / "r/report.html").read_text()
    assert "Original</dt>" not in page
    assert "The true sentences are not known here" in page


@pytest.mark.parametrize("update", ["gradient", "delta"])
def test_a_captured_update_is_judged_by_the_true_sentence(sent, leakgauge, update):
    words = ["--update", f"{update}.safetensors", "--update-holds", update, "--local-lr", "0.1", "--truth", "truth.txt"]
    done = leakgauge("attack", "hf:llama.json", *words, "--out", "r", "--json", "v.json")
    assert done.code == 0, done.err
    (record,) = records.read(sent / "r")
    assert record.outcome.leaks
    assert min(record.text.scores["rouge1"]) > 0.9
    wrong = leakgauge("attack", "hf:llama.json", *words, "--out", "w", "--batch-size", "2")
    assert wrong.code == 2
    assert "holds 1 sentence, where the update was made from 2" in wrong.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["attack", "hf:llama.json"], "reads text; give sentences"),
        (["attack", "hf:llama.json", "--data", "none.txt"], "no text file none.txt"),
        (["attack", "cnn", "--data", "s.txt"], "s.txt"),
        (["attack", "hf:llama.json", "--data", "s.txt", "--batch-size", "9"], "but the data holds 5"),
        (
            ["audit", "hf:llama.json", "--data", "s.txt", "--only", "split"],
            "leakgauge scan says where a language model may be cut",
        ),
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
