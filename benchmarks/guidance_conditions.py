"""The conditions of `guidance_study.py`: how networks are trained in each of its sections."""

from __future__ import annotations

from dataclasses import dataclass, replace

from heatlas.pipeline.models.families.founding_family import FoundingConfig
from heatlas.pipeline.models.families.monai import ResNetConfig
from heatlas.pipeline.run.config.networks import ModelConfig
from heatlas.studies.bcos.records import BcosSimpleConfig

FOUNDING = FoundingConfig(channels=(4, 8, 16), pools=(2, 2, 3), hidden_units=16, dropout=0.0)
RESNET = ResNetConfig(architecture="resnet10", width=0.125)
BCOS = BcosSimpleConfig(channels=(4, 8, 16), strides=(2, 2, 2))


WEIGHTS = {"energy": (1.0, 3.0, 10.0), "l1": (1.0, 10.0, 100.0), "ppce": (0.1, 1.0, 10.0), "rrr": (10.0, 100.0, 1e3)}
"""Of each loss, mildest first."""
FEW = 3.0
"""Weight of the energy of what is asked with one weight; with few annotations, as much larger as batches are rarer."""
LAST = (0.3, 1.0, FEW)
"""Weights of the energy at the last stage."""
ON = "-on"
"""End of the name of what goes on for as long without guidance."""


@dataclass(frozen=True)
class Condition:
    """One way to train. Shares are from 0 to 1; `mask` is "brain", "regions", "boxes", "sides" or "outside"."""

    name: str
    loss: str = ""  # of guidance; empty for none
    weight: float = 1.0  # of the maps
    mask: str = "brain"
    dilate: int = 0
    annotated: float = 1.0  # share of the people to train with; at least one person
    map: str = "input-x-gradient"  # that is guided
    teacher: str = ""  # condition whose network teaches; empty for none
    taught: str = "grad-cam"
    """What students and teachers compare: "grad-cam" or "attention-transfer" after the last stage, or "dynamic-weights"
    at the input. The table has the cosine of their Grad-CAM whatever they compare."""
    mixup: float = 0.0  # of scans that teacher and student see, as ``objective.mixup``
    people: float = 1.0  # share of each class to train with, at least one of each
    others: bool = False  # learn from people without a label (MCI) instead, none of whom has the marker
    family: ModelConfig = FOUNDING
    reversed: bool = False  # the marker is to be recognised, and the diagnosis goes with it
    unmarked: bool = False  # nobody has the marker in training: what a network can reach that knows nothing of it
    plain: bool = False  # nobody has the marker, in testing neither
    enlarged: float = 0.0  # share of its width that each box of the mask grows on either side, in training alone
    stage: int = 0  # boundary at which the map is guided; -1 the last with voxels
    shown: str = "input-x-gradient"  # map that is measured
    frozen: bool = False  # the teacher is asked once for each scan; its maps are flipped and shifted with the scans
    longer: float = 1  # times as many epochs: of few people, as many steps as of all
    begins: str = ""  # condition whose trained network goes on; empty for a fresh one
    held_out: bool = False  # IoU at the threshold best on the validation part, and on-object EPG of regions in boxes
    folds: int = 3  # the first ones only
    against: str = "control"  # condition that it is compared with


def conditions() -> list[Condition]:
    """In the order in which they are trained: teachers before students."""
    return [
        Condition("control"),
        Condition("unmarked", unmarked=True),
        Condition("energy-brain", "energy", weight=30.0),
        Condition("energy-regions-dilated", "energy", mask="regions", dilate=1),
        Condition("kd", teacher="energy-brain", weight=0.0),
        Condition("kd+maps", teacher="energy-brain", against="kd"),
        Condition("kd-25%", teacher="energy-brain", weight=0.0, people=0.25),
        Condition("kd+maps-25%", teacher="energy-brain", people=0.25, against="kd-25%"),
        Condition("kd-others", teacher="energy-brain", weight=0.0, others=True),
        Condition("kd+maps-others", teacher="energy-brain", others=True, against="kd-others"),
        Condition("at", teacher="energy-brain", taught="attention-transfer"),
        Condition("kd-mixup", teacher="energy-brain", weight=0.0, mixup=1.0),
        Condition("kd+maps-mixup", teacher="energy-brain", mixup=1.0, against="kd-mixup"),
        Condition("l1-brain", "l1", weight=100.0),
        Condition("ppce-brain", "ppce"),
        Condition("rrr-brain", "rrr", weight=1e4),
        Condition("energy-regions", "energy", weight=30.0, mask="regions"),
        Condition("energy-boxes", "energy", weight=30.0, mask="boxes"),
        Condition("energy-10%", "energy", weight=30.0, annotated=0.1),
        Condition("energy-1%", "energy", weight=30.0, annotated=0.01),
        Condition("evidence-brain", "energy", weight=30.0, map="evidence"),
        Condition("resnet10-control", family=RESNET),
        Condition("resnet10", "energy", weight=30.0, family=RESNET, against="resnet10-control"),
        Condition("kd-resnet10", teacher="resnet10", weight=0.0),
        Condition("kd-resnet10+maps", teacher="resnet10", against="kd-resnet10"),
        Condition("bcos-control", family=BCOS),
        Condition("bcos", "energy", weight=30.0, map="inherent", family=BCOS, against="bcos-control"),
        Condition("kd-bcos", teacher="bcos", weight=0.0, family=BCOS, against="bcos-control"),
        Condition("kd-bcos+maps", teacher="bcos", family=BCOS, against="kd-bcos"),
        Condition("kd-bcos+weights", teacher="bcos", taught="dynamic-weights", family=BCOS, against="kd-bcos"),
        Condition("reversed", reversed=True, against="reversed"),
        Condition("reversed-energy", "energy", weight=30.0, mask="outside", reversed=True, against="reversed"),
    ]


def further() -> list[Condition]:
    """Of the further section: boxes around the medial temporal lobe without any marker, and the reversed task."""
    plain = Condition("plain", mask="sides", plain=True, against="plain")
    energy = replace(plain, loss="energy", weight=30.0, against="plain")
    bcos = replace(plain, name="bcos-plain", map="inherent", shown="inherent", family=BCOS, against="bcos-plain")
    b_energy = replace(bcos, name="bcos-energy", loss="energy", weight=30.0, against="bcos-plain")
    b_l1 = replace(b_energy, name="bcos-l1", loss="l1", weight=100.0)
    x_dnn = replace(plain, name="x-dnn", family=replace(FOUNDING, bias=False), against="x-dnn")
    x_energy = replace(x_dnn, name="x-dnn-energy", loss="energy", weight=30.0, against="x-dnn")
    kd = replace(plain, name="kd", teacher="plain", weight=0.0, against="plain")
    b_kd = replace(
        bcos, name="kd-bcos", teacher="bcos-plain", taught="dynamic-weights", weight=0.0, against="bcos-plain"
    )
    turned = Condition("reversed", mask="outside", reversed=True, against="reversed")
    b_turned = replace(bcos, name="reversed-bcos", mask="outside", plain=False, reversed=True, against="reversed-bcos")
    few = {"people": 0.25, "longer": 4}
    maps = {"weight": 1.0}
    return [
        plain,
        bcos,
        b_energy,
        replace(b_energy, name="bcos-energy-10%", annotated=0.1, weight=90.0),
        replace(b_energy, name="bcos-energy-1%", annotated=0.01, weight=540.0),
        b_l1,
        *(
            replace(one, name=f"{one.name}+{share:.0%}", enlarged=share, against=one.name)
            for share in (0.5, 0.25, 0.1)
            for one in (b_energy, b_l1)
        ),
        turned,
        replace(turned, name="reversed-energy", loss="energy", weight=30.0),
        b_turned,
        replace(b_turned, name="reversed-bcos-energy", loss="energy", weight=30.0),
        replace(b_energy, name="bcos-energy-last", stage=-1),
        replace(b_energy, name="bcos-energy-middle", stage=3, against="bcos-energy"),
        replace(energy, name="energy"),
        replace(energy, name="energy-last", stage=-1),
        replace(energy, name="energy-middle", stage=2, against="energy"),
        kd,
        replace(kd, name="kd+maps", **maps, against="kd"),
        replace(kd, name="kd-25%", **few),
        replace(kd, name="kd+maps-25%", **few, **maps, against="kd-25%"),
        b_kd,
        replace(b_kd, name="kd-bcos+weights", **maps, against="kd-bcos"),
        replace(b_kd, name="kd-bcos-25%", **few),
        replace(b_kd, name="kd-bcos+weights-25%", **few, **maps, against="kd-bcos-25%"),
        replace(b_kd, name="kd-bcos-frozen", frozen=True),
        replace(b_kd, name="kd-bcos+weights-frozen", frozen=True, **maps, against="kd-bcos-frozen"),
        replace(b_kd, name="kd-bcos-frozen-25%", frozen=True, **few),
        replace(b_kd, name="kd-bcos+weights-frozen-25%", frozen=True, **few, **maps, against="kd-bcos-frozen-25%"),
        x_dnn,
        x_energy,
        replace(x_energy, name="x-dnn-energy-last", stage=-1),
    ]


def swept() -> list[Condition]:
    """Of the section with weights swept: networks that go on under guidance, a marker, and students of all folds."""
    known = {one.name: one for one in (*conditions(), *further())}
    found = []
    for name, losses in (("bcos-plain", tuple(WEIGHTS)), ("plain", ("energy",)), ("x-dnn", ("energy",))):
        start = replace(known[name], held_out=True, folds=1 if name == "x-dnn" else 3)
        short = name.removesuffix("-plain")
        on = replace(start, name=f"{short}{ON}", begins=name, longer=1 / 3, folds=1, against=name)
        found += [start, on]
        for loss in losses:
            found += [
                replace(on, name=f"{short}-{loss}-{weight:g}", loss=loss, weight=weight, against=on.name)
                for weight in WEIGHTS[loss]
            ]
    by_name = {one.name: one for one in found}
    energy, l1 = by_name[f"bcos-energy-{FEW:g}"], by_name[f"bcos-l1-{WEIGHTS['l1'][1]:g}"]
    found += [
        replace(energy, name=f"{energy.name}-10%", annotated=0.1, weight=3 * FEW, against=energy.name),
        replace(energy, name=f"{energy.name}-1%", annotated=0.01, weight=18 * FEW, against=f"bcos{ON}"),
        *(replace(one, name=f"{one.name}+50%", enlarged=0.5, against=one.name) for one in (energy, l1)),
        replace(energy, name=f"{energy.name}-middle", stage=3, against=energy.name),
        *(
            replace(by_name[f"{short}-energy-{FEW:g}"], name=f"{short}-energy-{weight:g}-last", weight=weight, stage=-1)
            for short in ("bcos", "plain", "x-dnn")
            for weight in LAST
        ),
    ]
    mild = replace(known["bcos"], name="marker-bcos-energy", weight=FEW)
    l1 = replace(mild, name="marker-bcos-l1", loss="l1", weight=10.0)
    founding = replace(known["energy-brain"], name="marker-energy", weight=FEW, folds=1)
    last = replace(founding, name="marker-energy-last", stage=-1)
    found += [known["bcos-control"], mild, l1, replace(known["control"], folds=1), founding, last]
    names = "kd-bcos", "kd-bcos+weights", "kd-bcos-frozen", "kd-bcos+weights-frozen", "kd", "kd+maps"
    return found + [replace(known[name], held_out=True) for name in names]
