"""What the adversary learns from public images: networks that make or denoise images of the victim's kind."""

from leakgauge.priors.diffusion import EMBEDDED, Diffusion, Training, gallery, load_diffusion, sample
from leakgauge.priors.fit import fit_diffusion
from leakgauge.priors.generator import Generator, fit_generator

__all__ = [
    "EMBEDDED",
    "Diffusion",
    "Generator",
    "Training",
    "fit_diffusion",
    "fit_generator",
    "gallery",
    "load_diffusion",
    "sample",
]
