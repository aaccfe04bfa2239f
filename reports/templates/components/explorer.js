"use strict";
// The table of regions: choose, sort, save; and slices of the brain in the colours of the chosen column.
for (const root of document.querySelectorAll(".explorer")) startExplorer(root);

// Lines of a tab-separated file and their cells; a cell that holds a tab, a quote or a line break is quoted.
function recordsOf(text) {
  if (!text.includes('"')) {
    return text.replace(/\n$/, "").split("\n").map((line) => ({ line, cells: line.split("\t") }));
  }
  const records = [];
  let [cells, start] = [[], 0];
  for (const { 0: all, 1: cell, 2: end, index } of text.matchAll(/("(?:[^"]|"")*"|[^\t\n]*)([\t\n])/g)) {
    cells.push(cell.startsWith('"') ? cell.slice(1, -1).replaceAll('""', '"') : cell);
    if (end === "\t") continue;
    records.push({ line: text.slice(start, index + all.length - 1), cells });
    [cells, start] = [[], index + all.length];
  }
  return records;
}

// Text without the apostrophe that keeps a spreadsheet from running it (pipeline/run/tables.py).
function unguarded(cell) {
  return cell.replace(/^'(?='*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20])/, "");
}

async function startExplorer(root) {
  const { GREYS, PLANES, atlas, colour, drawSlice, index, json, number, packed, unpacked, voxelAt } = window.heatlas;
  const find = (selector) => root.querySelector(selector);
  const { table, maps, links, columns } = json(find("script"));
  const space = await atlas();
  // The file as it is on disk: what is saved are its own lines.
  const text = new TextDecoder().decode(await unpacked(table));
  const [header, ...records] = recordsOf(text);
  const all = records.map(({ line, cells }) => (
    { line, ...Object.fromEntries(header.cells.map((key, place) => [key, unguarded(cells[place])])) }));
  const field = Object.fromEntries([...root.querySelectorAll("[name]")].map((one) => [one.name, one]));
  const heads = [...root.querySelectorAll("th[data-key]")];
  const HINT = "Point at a region, or move through the rows.";
  const SATURATED = 0.95;
  const BLANK = packed(74, 87, 102, 255);
  const LIT = packed(255, 255, 255, 255);
  let shown = [];
  let sorting = { key: columns.find((column) => column.paints).key, down: true };
  let paint = new Map(); // row of each label, in the order of the atlas
  let palette;

  const valueOf = (row, key) => (row[key] === "n/a" || row[key] === undefined ? NaN : Number(row[key]));
  const kindOf = (key) => columns.find((column) => column.key === key).kind;
  const titleOf = (key) => columns.find((column) => column.key === key).title;
  const probability = (p) => (p < 1e-4 ? "< 0.0001" : p.toFixed(4));

  function written(row, { key, kind }) {
    if (kind === "text" || row[key] === "n/a") return row[key];
    return kind === "p" ? probability(Number(row[key])) : number(Number(row[key]));
  }

  const mapOf = () => maps.find((one) => one.method === field.method.value
    && (one.beta === null || String(one.beta) === field.beta.value));

  function offerBetas() {
    const betas = maps.filter((one) => one.method === field.method.value && one.beta !== null).map((one) => one.beta);
    const before = field.beta.value;
    field.beta.replaceChildren(...betas.map((beta) => new Option(beta, beta)));
    if (betas.map(String).includes(before)) field.beta.value = before;
    field.beta.disabled = betas.length === 0;
    field.beta.parentElement.hidden = betas.length < 2;
  }

  // p of densities follows how sure the network is: it stands in the table, but neither colours nor selects regions.
  const isFair = (row) => row.tested !== "density";

  // Columns without a value in the chosen map are not offered.
  function offerMetrics() {
    const rows = all.filter((row) => row.map === mapOf().map);
    for (const option of field.metric.options) {
      option.disabled = !rows.some((row) => row[option.value] !== "n/a"
        && !(option.value === "mean_sum" && row.mean_sum === row.mean_evidence)
        && (kindOf(option.value) !== "p" || isFair(row)));
      option.hidden = option.disabled;
    }
    if (field.metric.selectedOptions[0].disabled) {
      field.metric.value = [...field.metric.options].find((option) => !option.disabled)?.value ?? "mean_share";
      sorting = { key: field.metric.value, down: kindOf(field.metric.value) !== "p" };
    }
  }

  function filter() {
    const side = field.hemisphere.value;
    const { map } = mapOf();
    // Classes are compared by bilateral groups.
    field.p.disabled = side !== "bilateral" || !all.some((row) => row.map === map && row.p_fwe !== "n/a" && isFair(row));
    if (field.p.disabled) field.p.value = "";
    const words = field.words.value.trim().toLowerCase();
    const limit = field.p.value === "" ? Infinity : Number(field.p.value);
    shown = all.filter((row) => row.map === map && row.scan_group === field.group.value
      && (side === "single" ? row.hemisphere !== "bilateral" : row.hemisphere === side)
      && (field.lobe.value === "" || row.lobe === field.lobe.value)
      && row.name.toLowerCase().includes(words)
      && (limit === Infinity || valueOf(row, "p_fwe") <= limit));
    sort();
  }

  function sort() {
    const { key, down } = sorting;
    const sign = down ? -1 : 1;
    const isText = kindOf(key) === "text";
    shown.sort((a, b) => {
      if (isText) return sign * a[key].localeCompare(b[key]);
      const [x, y] = [valueOf(a, key), valueOf(b, key)];
      return Number.isNaN(x) - Number.isNaN(y) || (Number.isNaN(x) ? 0 : sign * (x - y)); // rows without a value last
    });
    for (const head of heads) {
      if (head.dataset.key === key) head.setAttribute("aria-sort", down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    }
    list();
    colourBrain();
  }

  // Columns without a value here, and the sum of a map of evidence, which is its evidence, do not stand in the table.
  const isIdle = (key) => shown.length > 0 && shown.every((row) => row[key] === "n/a" || (key === "mean_sum" && row[key] === row.mean_evidence));

  function list() {
    const idle = new Set(columns.map(({ key }) => key).filter(isIdle));
    for (const head of heads) head.hidden = idle.has(head.dataset.key);
    find("tbody").replaceChildren(...shown.map((row) => {
      const line = document.createElement("tr");
      line.dataset.region = `${row.group} ${row.region}`;
      for (const column of columns) {
        const cell = line.insertCell();
        cell.className = column.kind;
        cell.hidden = idle.has(column.key);
        if (column.kind !== "text") cell.dataset.value = row[column.key];
        const link = column.key === "name" && links[row.group];
        const target = link ? cell.appendChild(document.createElement("a")) : cell;
        if (link) target.href = link;
        target.textContent = written(row, column);
      }
      const light = () => lightUp(row);
      line.addEventListener("pointerenter", light);
      line.addEventListener("focusin", light);
      return line;
    }));
    find(".shown").textContent = `${shown.length} of ${all.length} rows`;
  }

  const shade = (part) => colour(part < 0 ? space.colours.cool : space.colours.warm, Math.abs(part));

  // p is drawn as -log10 p, so that small is bright.
  const strength = (row, key) => (kindOf(key) === "p" ? -Math.log10(valueOf(row, key)) : valueOf(row, key));

  function colourBrain() {
    const key = field.metric.value;
    const values = shown.map((row) => strength(row, key)).filter(Number.isFinite);
    const sizes = values.map(Math.abs).sort((a, b) => a - b);
    const top = sizes[Math.floor(SATURATED * (sizes.length - 1))] || 1; // a few extreme regions must not hide the rest
    const twoSided = values.some((value) => value < 0);
    const single = new Map(shown.filter((row) => row.region !== "n/a").map((row) => [row.region, row]));
    const pooled = new Map(shown.filter((row) => row.region === "n/a").map((row) => [row.group, row]));
    paint = new Map();
    palette = new Uint32Array(space.regions.length + 1);
    space.regions.forEach((region, place) => {
      const row = single.get(String(region.number)) ?? pooled.get(region.group);
      const value = row ? strength(row, key) : NaN;
      palette[place + 1] = Number.isFinite(value) ? shade(value / top) : BLANK;
      if (row) paint.set(place + 1, row);
    });
    drawAll(palette);
    drawBar(key, top, twoSided);
  }

  function drawAll(colours) {
    for (const canvas of root.querySelectorAll("canvas[data-plane]")) {
      const { plane, mm } = canvas.dataset;
      const { through, across, up, edges } = PLANES[plane];
      const position = Math.round((Number(mm) - space.origin[through]) / space.voxel[through]);
      if (!canvas.dataset.sized) {
        [canvas.width, canvas.height] = [4 * space.shape[across], 4 * space.shape[up]];
        canvas.dataset.sized = "yes";
        const under = (event) => {
          const box = canvas.getBoundingClientRect();
          const share = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
          return space.labels[index(space.shape, voxelAt(space.shape, plane, position, share))];
        };
        canvas.addEventListener("pointermove", (event) => tell(paint.get(under(event))));
        canvas.addEventListener("click", (event) => goTo(paint.get(under(event))));
      }
      const context = canvas.getContext("2d");
      context.fillStyle = "#0b0f14";
      context.fillRect(0, 0, canvas.width, canvas.height);
      drawSlice(context, space.brain, space.shape, plane, position, GREYS, { smooth: true });
      drawSlice(context, space.labels, space.shape, plane, position, colours);
      context.fillStyle = "#e8edf2";
      context.font = `bold ${Math.round(canvas.width / 12)}px sans-serif`;
      context.fillText(edges[0], 4, canvas.height / 2);
      context.textAlign = "right";
      context.fillText(edges[1], canvas.width - 4, canvas.height / 2);
      context.textAlign = "left";
      context.fillText(`${"xyz"[through]} = ${number(Number(mm))}`, 4, canvas.height - 8);
    }
  }

  function drawBar(key, top, twoSided) {
    const context = find(".bar canvas").getContext("2d");
    for (let x = 0; x < 256; x++) {
      const packedColour = shade(twoSided ? (2 * x) / 255 - 1 : x / 255);
      context.fillStyle = `rgb(${packedColour & 255} ${(packedColour >> 8) & 255} ${(packedColour >> 16) & 255})`;
      context.fillRect(x, 0, 1, 1);
    }
    const isP = kindOf(key) === "p";
    find(".low").textContent = isP ? "p = 1" : twoSided ? `≤ ${number(-top)}` : "0";
    find(".middle").textContent = twoSided ? "0" : "";
    find(".high").textContent = isP ? `p ≤ ${probability(10 ** -top)}` : `≥ ${number(top)}`;
    find(".unit").textContent = `${titleOf(key)}; grey: no value, or not chosen`;
  }

  function lightUp(row) {
    const lit = palette.slice();
    for (const [place, painted] of paint) if (painted === row) lit[place] = LIT;
    drawAll(lit);
    tell(row);
  }

  function intervalOf(row, { key }) {
    const ends = [`${key}_low`, `${key}_high`].map((end) => valueOf(row, end));
    return ends.every(Number.isFinite) ? ` [${ends.map((end) => number(end)).join(", ")}]` : "";
  }

  function tell(row) {
    const column = columns.find(({ key }) => key === field.metric.value);
    find(".readout").textContent = row ? `${row.name}: ${written(row, column)}${intervalOf(row, column)} (${column.title})` : HINT;
  }

  function goTo(row) {
    const place = shown.indexOf(row);
    for (const line of find("tbody").rows) line.classList.toggle("lit", line.sectionRowIndex === place);
    if (place >= 0) find("tbody").rows[place].scrollIntoView({ block: "nearest" });
  }

  function save(name, rows) {
    const blob = new Blob([`${[header.line, ...rows].join("\n")}\n`], { type: "text/tab-separated-values" });
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  const lobes = [...new Set(all.map((row) => row.lobe))].filter((lobe) => lobe !== "n/a").sort();
  field.lobe.append(...lobes.map((lobe) => new Option(lobe, lobe)));
  if (!all.some((row) => row.hemisphere !== "bilateral")) field.hemisphere.disabled = true;
  for (const name of ["beta", "group", "hemisphere", "lobe", "p"]) field[name].addEventListener("change", filter);
  field.words.addEventListener("input", filter);
  field.method.addEventListener("change", () => {
    offerBetas();
    offerMetrics();
    filter();
  });
  field.metric.addEventListener("change", () => {
    sorting = { key: field.metric.value, down: kindOf(field.metric.value) !== "p" };
    sort();
  });
  for (const head of heads) {
    const { key } = head.dataset;
    head.querySelector("button").addEventListener("click", () => {
      sorting = { key, down: sorting.key === key ? !sorting.down : kindOf(key) === "number" };
      sort();
    });
  }
  find(".pictures").addEventListener("pointerleave", () => {
    drawAll(palette);
    tell();
  });
  find("tbody").addEventListener("pointerleave", () => drawAll(palette));
  field.selection.addEventListener("click", () => save("region_explorer_selection.tsv", shown.map((row) => row.line)));
  field.whole.addEventListener("click", () => save("region_explorer.tsv", records.map((record) => record.line)));
  offerBetas();
  offerMetrics();
  for (const part of [".controls", ".pictures", ".saving"]) find(part).hidden = false;
  filter();
  root.dataset.ready = "yes";
}
