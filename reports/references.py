"""Works that the methods text cites, by key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Reference:
    """One work; `link` is its permanent address."""

    text: str
    link: str


REFERENCES: Mapping[str, Reference] = {
    "founding": Reference(
        "Böhle M, Eitel F, Weygandt M, Ritter K (2019). Layer-wise relevance propagation for explaining deep neural "
        "network decisions in MRI-based Alzheimer's disease classification. Front Aging Neurosci 11:194.",
        "https://doi.org/10.3389/fnagi.2019.00194",
    ),
    "lrp": Reference(
        "Bach S, Binder A, Montavon G, Klauschen F, Müller K-R, Samek W (2015). On pixel-wise explanations for "
        "non-linear classifier decisions by layer-wise relevance propagation. PLoS ONE 10(7):e0130140.",
        "https://doi.org/10.1371/journal.pone.0130140",
    ),
    "guided": Reference(
        "Springenberg JT, Dosovitskiy A, Brox T, Riedmiller M (2015). Striving for simplicity: the all convolutional "
        "net. ICLR workshop.",
        "https://arxiv.org/abs/1412.6806",
    ),
    "syn": Reference(
        "Avants BB, Epstein CL, Grossman M, Gee JC (2008). Symmetric diffeomorphic image registration with "
        "cross-correlation. Med Image Anal 12(1):26-41.",
        "https://doi.org/10.1016/j.media.2007.06.004",
    ),
    "antsx": Reference(
        "Tustison NJ, Cook PA, Holbrook AJ, et al. (2021). The ANTsX ecosystem for quantitative biological and medical "
        "imaging. Sci Rep 11:9068.",
        "https://doi.org/10.1038/s41598-021-87564-6",
    ),
    "n4": Reference(
        "Tustison NJ, Avants BB, Cook PA, et al. (2010). N4ITK: improved N3 bias correction. IEEE Trans Med Imaging "
        "29(6):1310-1320.",
        "https://doi.org/10.1109/TMI.2010.2046908",
    ),
    "template": Reference(
        "Fonov V, Evans AC, Botteron K, et al. (2011). Unbiased average age-appropriate atlases for pediatric studies. "
        "NeuroImage 54(1):313-327.",
        "https://doi.org/10.1016/j.neuroimage.2010.07.033",
    ),
    "deepbet": Reference(
        "Fisch L, Zumdick S, Barkhau C, et al. (2024). deepbet: fast brain extraction of T1-weighted MRI using "
        "convolutional neural networks. Comput Biol Med 179:108845.",
        "https://doi.org/10.1016/j.compbiomed.2024.108845",
    ),
    "synthstrip": Reference(
        "Hoopes A, Mora JS, Dalca AV, Fischl B, Hoffmann M (2022). SynthStrip: skull-stripping for any brain image. "
        "NeuroImage 260:119474.",
        "https://doi.org/10.1016/j.neuroimage.2022.119474",
    ),
    "adam": Reference(
        "Kingma DP, Ba J (2015). Adam: a method for stochastic optimization. ICLR.",
        "https://arxiv.org/abs/1412.6980",
    ),
    "torch": Reference(
        "Paszke A, Gross S, Massa F, et al. (2019). PyTorch: an imperative style, high-performance deep learning "
        "library. Adv Neural Inf Process Syst 32.",
        "https://arxiv.org/abs/1912.01703",
    ),
    "permutation": Reference(
        "Phipson B, Smyth GK (2010). Permutation P-values should never be zero. Stat Appl Genet Mol Biol 9(1):39.",
        "https://doi.org/10.2202/1544-6115.1585",
    ),
    "bids": Reference(
        "Gorgolewski KJ, Auer T, Calhoun VD, et al. (2016). The brain imaging data structure. Sci Data 3:160044.",
        "https://doi.org/10.1038/sdata.2016.44",
    ),
}
