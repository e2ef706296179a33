"""What label smoothing does to the features of a class while a network trains, in the paper's own quantities.

Features z (N, …) are those of one cut, ``cloud`` the rest of the network from there to the logits, in eval mode, so that
samples do not meet. Everything is per sample or per class; classes without a sample give NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from leakgauge.errors import BadInput
from leakgauge.measures.features import class_radii
from reproductions.golden_partition_zone.smoothing import Smoothing

Cloud = Callable[[Tensor], Tensor]


def deviations(z: Tensor, labels: Tensor, classes: int) -> Tensor:
    """z_i − μ_c, each feature without the mean of its class; same shape as ``z``."""
    flat = z.flatten(1).double()
    sums = flat.new_zeros(classes, flat.shape[1]).index_add(0, labels, flat)
    means = sums / torch.bincount(labels, minlength=classes).clamp_min(1)[:, None]
    return (flat - means[labels]).view(z.shape)


def mean_per_class(values: Tensor, labels: Tensor, classes: int) -> Tensor:
    """1/N_c Σ_{i∈c} v_i for every class c, (K,); NaN where N_c = 0."""
    sums = values.new_zeros(classes).index_add(0, labels, values)
    return sums / torch.bincount(labels, minlength=classes)


def radius_change(z: Tensor, labels: Tensor, gradients: Tensor, *, rate: float, classes: int) -> Tensor:
    """ΔR_c² = −2γ/N_c Σ_{i∈c} (z_i − μ_c)ᵀ g_i, first order in the rate γ; (K,).

    ``gradients`` (N, …) are g_i = ∂ℓ_i/∂z_i of each sample's own loss, ``rate`` is γ.

    Ref: Liu and Zhu 2025, Eq. (6) and Appendix C — change of the class radius by one step
    """
    along = (deviations(z, labels, classes) * gradients.double()).flatten(1).sum(1)
    return -2 * rate * mean_per_class(along, labels, classes)


def logits_along_deviations(cloud: Cloud, z: Tensor, labels: Tensor, classes: int) -> Tensor:
    """T_ik = (z_i − μ_c)ᵀ J_iᵀ e_k for all k, (N, K): T_corr,i is the entry of the true class c, T_k,i the others.

    It is the derivative of the logits along z_i − μ_c, so one forward-mode pass gives all of it, without a Jacobian.

    Ref: Liu and Zhu 2025, Eq. (7) — T_corr,i and T_k,i
    """
    away = deviations(z, labels, classes).to(z.dtype)
    with sdpa_kernel(SDPBackend.MATH):  # the fused attentions have no forward-mode derivative
        return torch.func.jvp(cloud, (z.detach(),), (away,))[1]


def radius_change_by_class(
    pulls: Tensor, probabilities: Tensor, targets: Tensor, labels: Tensor, *, rate: float
) -> Tensor:
    """ΔR_c² = −2γ/N_c Σ_{i∈c} Σ_k (p_ik − y'_ik) T_ik, (K,).

    ``pulls`` (N, K) are T, ``probabilities`` p, ``targets`` y'. One-hot targets give Eq. (7), smoothed ones Eq. (8). The
    paper's y' do not sum to 1, so its Eq. (8) is the change under the gradient p − y', which is not quite its loss's.

    Ref: Liu and Zhu 2025, Eqs. (7) and (8) — change of the class radius by class terms
    """
    bracket = ((probabilities - targets) * pulls).sum(1).double()
    return -2 * rate * mean_per_class(bracket, labels, probabilities.shape[1])


def smoothing_limit(alpha: float, classes: int) -> float:
    """c_α = √(α² + (K − 1)(α/K)²), the norm of p − y' where p is one-hot and y' the paper's smoothed target.

    The paper takes it for the end of training. It is not: a network trained on y' tends to p = y', where p − y' vanishes.

    Ref: Liu and Zhu 2025, Eq. (D.3) — c_α
    """
    return (alpha**2 + (classes - 1) * (alpha / classes) ** 2) ** 0.5


def smallest_singular_values(cloud: Cloud, z: Tensor) -> Tensor:
    """σ_min(J_i), the K-th singular value of each sample's Jacobian ∂logits/∂z (K × D), (N,).

    The paper's smallest *positive* one bounds nothing where J has a lower rank than K: the part of p − y' that J does not
    see is lost. This one is 0 there.

    Ref: Liu and Zhu 2025, Eq. (D.1) — σ_min(J)
    """
    inputs = z.detach().requires_grad_()
    logits = cloud(inputs)
    rows = [
        torch.autograd.grad(logits[:, k].sum(), inputs, retain_graph=True)[0].flatten(1) for k in range(logits.shape[1])
    ]
    jacobian = torch.stack(rows, 1).double()
    return torch.linalg.eigvalsh(jacobian @ jacobian.mT)[:, 0].clamp_min(0).sqrt()


@dataclass(frozen=True)
class Snapshot:
    """The quantities at one moment of a training; per class where a tuple, else means over the samples.

    ``radius`` is R_c². ``change`` is its first-order change by one step down the loss that is in use (Eq. 6),
    ``change_one_hot`` and ``change_smoothed`` are Eqs. (7) and (8). ``gradient_norm`` is ‖∂ℓ/∂z‖, ``gradient_floor`` is
    σ_min(J)·‖p − y'‖, which never exceeds it where the targets sum to 1, and ``limit`` is σ_min(J)·c_α. ``confidence`` is
    p_c; Appendix D takes it to be 1.
    """

    radius: tuple[float, ...]
    change: tuple[float, ...]
    change_one_hot: tuple[float, ...]
    change_smoothed: tuple[float, ...]
    gradient_norm: float
    gradient_floor: float
    limit: float
    confidence: float


def snapshot(
    cloud: Cloud, z: Tensor, labels: Tensor, *, smoothing: Smoothing, rate: float, samples: int = 64
) -> Snapshot:
    """All quantities for features ``z`` of true ``labels``; the Jacobians of Appendix D on the first ``samples`` alone.

    Ref: Liu and Zhu 2025, Appendix D — lower bound of the gradient norm under label smoothing
    """
    if len(z) != len(labels) or len(z) == 0:
        raise BadInput(f"every feature needs its label, got {len(z)} features and {len(labels)} labels")
    inputs = z.detach().requires_grad_()
    logits = cloud(inputs)
    classes = logits.shape[1]
    (gradients,) = torch.autograd.grad(smoothing(logits, labels) * len(labels), inputs)  # each sample's own gradient
    probabilities = logits.detach().softmax(1)
    one_hot = F.one_hot(labels, classes).to(probabilities)
    smoothed = smoothing.targets(labels, classes, dtype=probabilities.dtype)
    pulls = logits_along_deviations(cloud, z, labels, classes)
    changes = [radius_change_by_class(pulls, probabilities, y, labels, rate=rate) for y in (one_hot, smoothed)]
    singular = smallest_singular_values(cloud, z[:samples])
    missing = (probabilities - smoothed)[:samples].double().norm(dim=1)
    radii = class_radii(z, labels).per_class
    return Snapshot(
        radius=tuple(radii.get(c, float("nan")) for c in range(classes)),
        change=tuple(radius_change(z, labels, gradients, rate=rate, classes=classes).tolist()),
        change_one_hot=tuple(changes[0].tolist()),
        change_smoothed=tuple(changes[1].tolist()),
        gradient_norm=float(gradients.flatten(1).norm(dim=1).mean()),
        gradient_floor=float((singular * missing).mean()),
        limit=float(singular.mean()) * smoothing_limit(smoothing.alpha, classes),
        confidence=float(probabilities.gather(1, labels[:, None]).mean()),
    )
