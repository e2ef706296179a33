"""Find where a timm model may be cut between device and cloud: what can be read out of the features at each stage?

    python examples/timm_model.py [--quick] [--out FOLDER]           needs: pip install 'leakgauge[timm]'

A ResNet-10-T of timm with random weights (nothing is downloaded) gets the embedded images at 32 x 32 pixels. The adversary has
images of the same kind and fits a regression at each cut; near the threshold it also uses the known weights (least squares). Look
at the FVU (fraction of variance unexplained: 0 is a copy, 1 is nothing learned) and, in ``report.html``, at the pictures. Quick: four
cuts, 240 images. Full: every cut worth it, 1000 images. About 19 s, quick 9 to 10 s, on one core.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from leakgauge import Pixels, Victim
from leakgauge.audit import Case, Setup
from leakgauge.audit.findings import read_findings
from leakgauge.audit.questions import split_records
from leakgauge.audit.questions.split import Asked, ScanRun, plan_scan
from leakgauge.audit.wording import statements
from leakgauge.data import fashion
from leakgauge.data.fit import fit
from leakgauge.errors import MissingExtra
from leakgauge.integrations import timm
from leakgauge.report import page

NAME, SIDE = "resnet10t", 32
QUICK_CUTS = ("maxpool", "layer2.0.act2", "layer3.0.act2", "layer4.0.act2")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="four cuts, and few images for the adversary")
    parser.add_argument("--out", type=Path, default=Path("leakgauge-runs/example-timm_model"), help="run folder")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for file in (split_records.PLAN, split_records.FILE, split_records.CONCLUSION):
        (options.out / file).unlink(missing_ok=True)  # of an earlier try

    try:
        model, made_for = timm.load(NAME, classes=10)
    except MissingExtra as missing:
        parser.exit(2, f"{missing}\n")
    space = Pixels((3, SIDE, SIDE), mean=made_for.mean, std=made_for.std)  # it is convolutional: any size will do
    images, labels = (part[: 300 if options.quick else 1250] for part in fashion("train"))
    setup = Setup(
        Victim(model, space, name=NAME), fit(images, shape=space.shape, resize=True, source="fashion"), labels
    )

    plan = plan_scan(
        setup,
        Case(model=f"timm:{NAME}", data="fashion", classes=10, resize=True),
        Asked(epochs=0, threshold=0.25, names=QUICK_CUTS if options.quick else ()),
        options.out,
        command="python examples/timm_model.py",
    )
    ScanRun(setup, plan, options.out)()
    fvu = {row.cut: row.fvu for row in split_records.read(options.out) if row.attack == split_records.RIDGE}
    for cut in plan.cuts:
        print(f"{cut['name']}: {cut['bytes']} bytes are sent, ridge regression leaves an FVU of {fvu[cut['name']]:.2f}")
    print(f"report: {page.write(options.out)}")
    first = str(plan.cuts[0]["name"])
    scanned = next(one for one in statements(read_findings(options.out)) if one.question == "split")
    print(f"Finding: after {first} {1 - fvu[first]:.0%} of the images' variance can be read back. {scanned.text}")


if __name__ == "__main__":
    main()
