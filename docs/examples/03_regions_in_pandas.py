"""
Regions that differ, as a table
===============================

Every table of a run is read as pandas; ``run.tables`` lists them, and the page on tables says what each column
means. This is the comparison of patients and controls for the map that leads the report, with the participant as
the unit.
"""

import heatlas

run = heatlas.open("../../demo/run")
effects = run.table("group_comparisons").query("comparison == 'AD/CN' and metric == 'density' and map == @run.maps[0]")
strongest = effects.sort_values("hedges_g", key=abs, ascending=False)
strongest[["group", "n_first", "n_second", "hedges_g", "hedges_g_low", "hedges_g_high", "p", "p_fwe"]].head(10).round(3)

# %%
# Read it beside how well the networks tell the classes apart: maps of networks that cannot show nothing.
performance = run.table("performance").query("fold == 'all'")
performance[["metric", "estimate", "ci_low", "ci_high", "n_participants"]].round(3)
