"""Prefaces of the sections of `patients_networks.py`: what was asked, and the rules that were said before numbers."""

from __future__ import annotations

PENALTY = 100.0
"""With the weights that CoDA-S has without it, that adds about .4 to a loss of .69 at chance."""
GRIDS = """\
Grids: 2 × 2 × 1 test scans of a fold side by side, the most confident of those recognised, one grid for each class and
fold; share of positive attribution in the cell of the class, from the logit, in per cent; chance is 25. `at 0` is the
input, `at 1` the last stage; `top`: the largest 2.5 % of the values alone. Networks are confident about different
people, so two of them are compared on the people whom both explain. `correct`: people classified correctly, in per
cent; chance is 50, and ridge regression on regions has an area of .79 ([patients.md](../patients.md))."""
OWN = f"""\
The people and folds of the first section at 4 mm, by `python benchmarks/patients_networks.py own`, one network a fold.
B-cos: `bcos-simple` (B 1 to 2.5) by binary cross-entropy; founding and CoDA-S (`coda-s`) by the recipe `patients`.
CoDA-S was trained for the first two folds of each seed only. Unlike the sources: two classes, small networks.
{GRIDS}
B-cos and founding networks of seed 43 were seen in grids before the rest had run."""
OWN_FURTHER = f"""\
As the section "Networks that explain themselves", all five folds, by
`python benchmarks/patients_networks.py own-further`: `bcos-simple` with the source's B of 2 and with 2.5, the founding
network, and the same without biases (learning rate 3e-4, 40 epochs: the best on the demo). Unlike the source: two
classes, 4 mm, small networks without MaxOut, and a founding network that is not the B-cos one less its B.
{GRIDS}
Here there are up to four grids for each class and fold, three of the founding network.
Seen before: B 1.5 beside the founding network over five folds, and own maps of B 2 (27, 28, 36 per cent by seed) and of
B 2.5 (39, 29, 43) over two folds of other trainings, but no other maps with these B and no network without biases. Said
before anything here was seen (a difference is on a side if its interval over people and every seed are):

- B 2 decides, 2.5 is a second answer. B6 holds if B-cos less founding is above -2 points, and does not hold if it is
  below -2. B7 holds if B-cos less the founding network without biases is above 0 and does not hold if it is below.
- B8, B9: own maps less gradient, input × gradient and integrated gradients at the input, of the same network (B8) and
  of the founding one (B9, and less guided backpropagation). They hold if all lie above 0, and do not if one lies below.
  `smoothed`: by a Gaussian 3 voxels wide (σ = .75), 7 per cent of an edge, where the source has a box of that width;
  added later, since a reader asked for it.
- B10 does not hold if one other map lies above own maps. Grad-CAM counts; LRP does not, as the source has none.
- B11: it can be answered if own maps are well above chance: on average by 10 points, and above it by the interval and
  every seed. Then it holds if Grad-CAM of the same network lies within 10 points of them (interval and seeds), and does
  not hold if it is more than 10 points away.
- B12 holds if the B-cos network has the higher share of each of the four maps, and does not if it has the lower of one.
  B13 holds if the share of the largest 2.5 % is higher, and does not if it is lower.

All took 53 minutes of a core that others used too."""
TESTED = f"""\
The same people by `python benchmarks/patients_networks.py tests`, the first two of five folds of each seed. Unlike the
sources: two classes, 4 mm, small networks; air around the brain in place of edges of images. What follows was written
before any number was seen, but for CoDA-S in the grids of the section before:

- K6, K7: voxels of the brain become [0, 0], up to a quarter, in 10 steps; mean probability of the true class on the
  way, first six people of a fold by name. K6 holds if the class keeps its probability (at most 5 points less) where the
  least important go first, and it stays above that of a random order; K7, if it is lowest by the network's own map.
  Other maps are of the same network, at the input, Grad-CAM at the last features; none hides anything.
- K13: as parameters are drawn anew, layer by layer from the head down, rank correlation over the brain of a person's
  maps, without its sign; first four of a fold. It holds if no map is like the trained one (below .5) or like the one
  a step before (below .9). A map of the image alone has 1.
- B17, B18: share of people for whom constants make more than half of the margin between the classes, and for whom they
  speak for the second class. Most: above 50; constants do not decide: below 50. `size`: mean size in logits.
- B19 to B21: share of positive contributions to the true class that lie outside the brain, where air is [0, 1] (dark).
  B19 holds above 25, B20 if that is below 25 less the mean of the classes, B21 if off-targets lower it. `rim`: 100 is
  its share of voxels.
- B4 is decided by B 2.5 and B 1, A10 and A13 by a bound of 10 points, all else by the sign. A difference is on a side
  if its interval and every seed are.

{GRIDS}
Of own maps alone there are up to four grids for each class and fold, of ResNet-10 up to two. T: temperature, as a
multiple of the usual one.
Networks with biases and those that see air took ten minutes of a core; CoDA-S took 24, half of them for its networks,
of a core that others used too, and ResNet-10 took 26 of it, B-cos over B 12 and two temperatures 18."""
OF_PENALTY = f"""\
CoDA networks as in the section "Networks that explain themselves", the first two of five folds of each seed, by
`python benchmarks/patients_networks.py penalty`: with a penalty of λ = {PENALTY:g} on the mean absolute weight, which
adds about .4 to a loss of .69 at chance, less those without. As in the source: what is penalised (the mean absolute
entry of W(x)), and that nothing else differs. Unlike it: one λ, far from its own (.01 and .05, in its code 0 to 1), a
temperature set from data, two classes, 4 mm, small networks, off-target loss.
{GRIDS}
Here there are up to four grids for each class and fold. Said before any number: K10 holds if the share of own maps is
higher with the penalty, and does not if it is lower, where the interval over people and every seed are on that side.
All took 40 minutes of a core that others used too."""
PROBES = f"""\
On each fold's frozen network, trained from the labels as in the first section (founding) or as `bcos-simple`, by
`python benchmarks/patients_networks.py probes`: heads of one layer (linear) and, if asked, three (MLP, B-cos), ten
epochs of cross-entropy (CE) or binary cross-entropy (BCE). Unlike the source: backbones that know the labels, two
classes, ten epochs of Adam in place of 100; the first two of five folds of each seed.
{GRIDS}
For the first four people of each fold by name, inside the brain: Gini index and entropy (bits) of the positive values
of the map of the true class, and the mean probability of that class while voxels are removed, the least important
first, in per cent.
Linear probes by CE of seed 43 were seen before the rest had run."""
OF_LOSSES = f"""\
As the section "Probes", linear heads on frozen networks that know the labels, but all five folds, by
`python benchmarks/patients_networks.py losses`: binary cross-entropy (BCE) less cross-entropy (CE). As in the source:
both losses, Score-CAM and LIME, rules of LRP. Unlike it: backbones that know the labels, two classes, ten epochs of
Adam in place of 100, and maps are not smoothed (its code: means of 5 × 5, input × gradient by a Gaussian of 129 of 224
voxels). `smooth`: by a Gaussian of 5 and of 29 of 46 voxels, added later, since a reader asked for it.
{GRIDS}
Here there are up to two grids for each class and fold of founding networks, four of B-cos ones. LIME, with 200 samples
of 40 parts of a grid, is asked of heads by themselves. For the first six people of each fold by name, inside the brain:
Gini index and entropy (bits) of the positive values of the map of the true class (LRP: ε, γ = .25 and zB, as in the
source), and the mean probability of that class (softmax, with both losses) while voxels are removed, the least
important first, in per cent; `of the whole`: of those recognised, divided by the probability of the whole scan.

Said before numbers. The section "Probes" has two folds of other trainings and had been seen: GridPG of LRP +3.6 points,
of integrated gradients at the input -.15, of B-cos maps +.8, of Grad-CAM +2.7; entropy and Gini index alike with LRP of
β = 0. Of LIME, Score-CAM, guided backpropagation and `of the whole`, one fold of heads by CE at most. BCE less CE, on
one side where the interval over people and every seed lie there:

- P1 to P4 (LRP γ = .25, integrated gradients, both at the input, LIME, and own maps of B-cos networks) and P14
  (Score-CAM, both networks): GridPG above 0 holds. It does not hold below 0, or if it is within half a point of 0. Of
  integrated gradients it stays open if they are within two points of chance with both losses.
- P5 holds if `correct` is above -2 points on both networks, and does not if it is below on one.
- P6 (input × gradient and guided backpropagation at the input, Grad-CAM at the last stage) holds if all three are
  within 2 points of 0; otherwise one kind of backbone cannot answer it.
- P8 holds if with LRP and with B-cos maps entropy falls and the Gini index rises. It does not if with one of them both
  go the other way, or are alike: within .2 bits and .012, a tenth of what the source found on DINO.
- P13 holds if `least first, of the whole` is higher with LRP and with B-cos maps, and does not if one is lower.

The rules of integrated gradients, P5 and P6 are stricter than they were: a reader asked for that while the study ran,
before any of its numbers was seen. All took 81 minutes of a core that others used too, LIME 23 of them."""
DEPTH = f"""\
As the section "Probes", but all five folds, by `python benchmarks/patients_networks.py depth`: heads of three layers
less linear ones, by binary cross-entropy, with which the source varies depth, on the same frozen founding networks, ten
epochs of Adam. Layers are 1 × 1 × 1 convolutions before the average over places, with normalisation between them, as in
the source; MLP: with ReLU, B-cos: B of 2. Unlike its code, maps are not smoothed.
{GRIDS}
Here there are up to two grids for each class and fold.
Said before anything of this study was seen: a number rises (falls) where the interval over people and every seed lie
above (below) 0. Integrated gradients of the input were at chance with linear heads, so their maps of the last stage
decide; of LRP (γ .25) it is those of the input. P10 holds if accuracy and GridPG of integrated gradients both rise
with a B-cos head, and does not hold if one of them falls. P11 holds if accuracy rises with an MLP and GridPG of LRP or
of integrated gradients falls, and does not hold if accuracy falls or both maps rise. P12 is about several backbones: on
one, it does not hold if Grad-CAM rises with both heads or falls with both, and is open otherwise. Two folds with one
grid for each class had left all three open (6 to 8 people; accuracy -4.4 points with a B-cos head, -4.7 with an MLP;
Grad-CAM -6.8 and -8.9, with other trainings): folds and grids were added because of that, P11 and P12 made stricter
because of a reader. A reader opened P12 again after its number: of one backbone it cannot be answered.
All took 18 minutes of a core that others used too."""
PRETRAINED = f"""\
Founding networks that learned from the 146 younger people of OASIS-1 without labels (SimCLR, 30 epochs of the preset
`patients`), and linear heads on them, trained and tested on the people of the first section, by
`python benchmarks/patients_networks.py pretrained`: ten epochs of cross-entropy (CE) or binary cross-entropy (BCE), all
five folds. The temperature changes as a cosine; `fixed`: τ = .1. As in the source: backbones that saw no label, both
losses, rules of LRP. Unlike it: 146 people, small networks, two classes, no long tail; maps are not smoothed.
A seed took 8 minutes of a core that others used too, and registration 15. MoCo was begun with two seeds and left, for
lack of time.
{GRIDS}
From the features of the backbone, in per cent of the people of a fold: right by the nearest person, or the ten nearest,
of the training part; `few-shot probe`: by logistic regression on ten people of it, five of each class, 20 draws.
One fold of networks of four epochs was looked at before. Said before any other number: a difference is on a side if its
interval over people and every seed are.

- A backbone has learned something of the disease if `few-shot probe` or `correct` is above 50; if it has not, claims
  that rest on it stay open.
- T1 holds if `nearest 1` and `few-shot probe` are higher with the cosine, and does not if one is lower, or if both are
  within 2 points of 0.
- P5 holds if `correct` of BCE less CE is above -2 points, and does not if it is below.
- P1, P2 (LRP γ = .25, integrated gradients, at the input): above 0 holds; below 0, or within half a point of 0, does
  not. Of integrated gradients it stays open if they are within two points of chance with both losses."""
READABLE = """\
Founding networks of the first fold of each seed, by `python benchmarks/patients_networks.py readable`: trained as in
the first section, with input gradients drawn towards guided ones. As in the source: distances, and weights over
four decades; unlike it: two classes, 4 mm, weight 1 unless said, Adam, at most 20 epochs, maps of the last features.
In per cent: masked recognition of the true class as in "CAM methods", and insertion and deletion of the first eight by
name. Weight 0 is the usual training."""
OF_WEIGHTS = """\
As the section "Readable gradients", by `python benchmarks/patients_networks.py weights`: other weights less the usual
one (1), all with the cosine, and the cosine less other distances and less weight 0, all with the usual weight;
Grad-CAM. As in the source: weights over four decades, distances. Said before anything was seen: lower and higher where
the interval over people and every seed lie on one side of 0; two weights are alike where the intervals of the average
drop (AD) and of the people classified correctly lie within 5 points. R4 holds if every weight is like the usual one,
and does not hold if the AD or the accuracy of one is lower or higher by more than 5 points, by the interval and in
every seed. R6 holds if the AD of the cosine is lower than that of each other distance, and does not hold if that of
one is lower."""
OF_ALONE = """\
Founding networks of the first fold of each seed, by `python benchmarks/patients_networks.py alone`: trained as in the
first section, with guided gradients in place of gradients (guided alone), beside weight 0, the usual training. Unlike
the source: two classes, 4 mm, and Adam, whose steps hardly depend on the size of gradients. Said before anything was
seen: the training is unstable if in every seed its loss stops being finite, or is no lower in the last epoch than in
the first; it is stable if in every seed the loss is finite and lower. `correct` as above; chance is 50, and a network
that knows nothing has a loss of .693. All took 2.7 minutes of a core that others used too."""
