// The live page: asks the service it comes from, and draws what that tells. No library, no build step.
"use strict";

const POLL_MS = 2000; // how often the pools are asked
const $ = (id) => document.getElementById(id);
const NAMES = { recovered: "recovered: the target's token where a draft was wrong", bonus: "bonus: the target's extra token",
  plain: "plain: nothing was drafted" };
const LANE = 30, LEFT = 2, TOP = 6; // of the timeline, pixels

let status = null; // as /v1/outrider/status tells it
let running = null; // an AbortController

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function drawn(tag, attributes, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

function headers() {
  const token = $("token").value.trim();
  return { "content-type": "application/json", ...(token ? { authorization: `Bearer ${token}` } : {}) };
}

async function refused(response) {
  const body = await response.json().catch(() => null);
  return new Error(body?.error?.message ?? `the service answered ${response.status}`);
}

// --- one generation -----------------------------------------------------------------------------

async function* events(body, signal) {
  const response = await fetch("/v1/outrider/generate", { method: "POST", headers: headers(), body: JSON.stringify(body), signal });
  if (!response.ok) throw await refused(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("the stream ended without its last event");
    rest += value;
    const parts = rest.split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}

// What one side of the page shows; `coloured`: each token in the colour of its origin.
class Side {
  constructor(name, coloured) {
    this.name = name;
    this.coloured = coloured;
    this.text = "";
    this.numTokens = 0;
    this.seconds = 0;
    this.calls = [];
    this.finish = null;
    this.decoder = new TextDecoder();
    this.shown = $(`${name}-text`);
    this.shown.replaceChildren();
    for (const part of ["speed", "figures"]) $(`${name}-${part}`).textContent = part === "speed" ? "–" : "";
    $(`${name}-bar`).style.width = "0";
  }

  get speed() { return this.seconds > 0 ? this.numTokens / this.seconds : 0; }

  take(event) {
    this.text += event.text;
    this.seconds = event.at_s;
    this.calls.push(...event.calls);
    for (const token of event.tokens) {
      this.numTokens += 1;
      const text = this.decoder.decode(new Uint8Array(token.bytes), { stream: true });
      if (this.coloured && text) this.shown.append(element("span", { class: `${token.origin} tier-${token.tier}`, title: told(token) }, text));
    }
    if (!this.coloured) this.shown.textContent = this.text;
    this.shown.scrollTop = this.shown.scrollHeight;
    $(`${this.name}-speed`).textContent = this.speed.toFixed(1);
    if (event.finish) this.end(event.finish);
  }

  end(finish) {
    this.finish = finish;
    const figures = finish.speculation;
    const parts = [`${finish.prompt_tokens} + ${finish.completion_tokens} tokens`, `${figures.num_rounds} rounds`,
      `${figures.mean_committed_tokens.toFixed(2)} a round`];
    if (figures.num_drafted) parts.push(`${figures.num_accepted} of ${figures.num_drafted} drafted tokens kept (${percent(figures.num_accepted, figures.num_drafted)})`);
    if (figures.lossy_policy) parts.push(`LOSSY: ${figures.lossy_policy}`);
    for (const [reason, count] of Object.entries(figures.num_degraded_by_reason)) parts.push(`${reason} × ${count}`);
    $(`${this.name}-figures`).textContent = parts.join(" · ");
  }
}

const percent = (part, whole) => `${Math.round(100 * part / whole)} %`;
const tierName = (index) => status?.tiers[index]?.name ?? `tier ${index}`;
const told = (token) => token.origin === "accepted" ? `accepted, drafted by ${tierName(token.tier)}` : NAMES[token.origin] ?? token.origin;

function scaleBars(...sides) {
  const fastest = Math.max(...sides.map((side) => side.speed), 1e-9);
  for (const side of sides) $(`${side.name}-bar`).style.width = `${100 * side.speed / fastest}%`;
}

async function run() {
  if (running || !$("ask").reportValidity()) return;
  running = new AbortController();
  $("run").disabled = true;
  $("stop").disabled = false;
  say("");
  const ahead = new Side("ahead", true), alone = new Side("alone", false);
  $("verdict").textContent = "";
  const asked = {
    model: status?.model ?? "", messages: [{ role: "user", content: $("prompt").value }],
    max_tokens: Number($("max-tokens").value), temperature: Number($("temperature").value),
    ...($("seed").value === "" ? {} : { seed: Number($("seed").value) }),
  };
  try {
    say("running with drafts …");
    for await (const event of events(asked, running.signal)) {
      ahead.take(event);
      scaleBars(ahead, alone);
      drawRounds(ahead);
    }
    drawPositions(ahead.finish.speculation);
    if ($("compare").checked) {
      say("running the target alone …");
      for await (const event of events({ ...asked, speculation: { enabled: false } }, running.signal)) {
        alone.take(event);
        scaleBars(ahead, alone);
      }
      judge(ahead, alone);
    }
    say("done");
  } catch (error) {
    if (error.name === "AbortError") say("stopped");
    else say(error.message, true);
  } finally {
    running = null;
    $("run").disabled = false;
    $("stop").disabled = true;
  }
}

function judge(ahead, alone) {
  const same = ahead.text === alone.text, times = (ahead.speed / alone.speed).toFixed(2);
  const exact = !ahead.finish.speculation.lossy_policy && ($("seed").value !== "" || Number($("temperature").value) === 0);
  $("verdict").className = `verdict ${same && ahead.speed >= alone.speed ? "good" : same || !exact ? "" : "bad"}`;
  $("verdict").textContent = `${times} times as fast, ` + (same ? "the same text" : exact ? "BUT ANOTHER TEXT" : "another text, as each run has its own randomness");
}

function say(text, bad = false) {
  $("said").textContent = text;
  $("said").className = bad ? "said bad" : "said";
}

// --- pictures -----------------------------------------------------------------------------------

function drawRounds(side) {
  const names = status?.pools.map((pool) => pool.name) ?? [];
  const numLanes = Math.max(names.length, 1 + Math.max(0, ...side.calls.map((call) => call.pool)));
  const last = Math.max(0.001, ...side.calls.map((call) => call.ended_s));
  const box = $("timeline");
  const passes = side.calls.filter((call) => call.kind.startsWith("verify") || call.kind === "step").map((call) => call.ended_s - call.began_s).sort((a, b) => a - b);
  const pass = passes[passes.length >> 1] ?? last;
  const scale = Math.max((box.clientWidth - LEFT - 12) / last, 46 / pass); // pixels a second: a usual pass is well seen
  const width = LEFT + last * scale + 12, height = TOP + numLanes * LANE + 22;
  const svg = drawn("svg", { width, height });
  $("lanes").replaceChildren(...Array.from({ length: numLanes }, (_, lane) => element("div", {}, names[lane] ?? `pool ${lane}`)));
  for (let lane = 0; lane < numLanes; lane++) {
    const y = TOP + lane * LANE;
    svg.append(drawn("line", { x1: LEFT, x2: width, y1: y + LANE - 3, y2: y + LANE - 3 }));
  }
  for (const call of side.calls) {
    const ms = (1000 * (call.ended_s - call.began_s)).toFixed(1);
    const bar = drawn("rect", { class: call.kind, x: LEFT + call.began_s * scale, y: TOP + call.pool * LANE + 2, rx: 2, height: LANE - 9,
      width: Math.max(1.5, (call.ended_s - call.began_s) * scale - 1) });
    bar.append(drawn("title", {}, `${names[call.pool] ?? call.pool}: ${call.kind.replace("_", " ")}, ${ms} ms`));
    svg.append(bar);
  }
  const step = niceStep(110 / scale);
  for (let at = 0; at <= last; at += step) {
    const x = LEFT + at * scale;
    svg.append(drawn("line", { x1: x, x2: x, y1: height - 20, y2: height - 16 }));
    svg.append(drawn("text", { x: x + 2, y: height - 4 }, `${Math.round(at * 1000)} ms`));
  }
  const atEnd = box.scrollLeft + box.clientWidth >= box.scrollWidth - 40;
  box.replaceChildren(svg);
  if (atEnd) box.scrollLeft = box.scrollWidth;
  const text = together(side.calls, numLanes - 1);
  $("overlap").textContent = text;
  box.setAttribute("aria-label", `Timeline of drafting and verifying. ${text}`);
}

function niceStep(least) {
  for (let step = 0.001; ; step *= 10) for (const times of [1, 2, 5]) if (step * times >= least) return step * times;
}

// How much of the target's time something was drafted in.
function together(calls, target) {
  const edges = [];
  for (const call of calls) edges.push([call.began_s, call.pool === target ? 1 : 0, 1], [call.ended_s, call.pool === target ? 1 : 0, -1]);
  edges.sort((a, b) => a[0] - b[0]);
  let busy = [0, 0], both = 0, targets = 0, before = 0;
  for (const [at, who, change] of edges) {
    if (busy[1]) targets += at - before;
    if (busy[1] && busy[0]) both += at - before;
    busy[who] += change;
    before = at;
  }
  return targets ? `drafting during ${percent(both, targets)} of the target's time` : "";
}

function drawPositions(figures) {
  const reached = figures.num_drafted_by_position, kept = figures.num_accepted_by_position;
  const shown = reached.map((count, position) => {
    const share = count ? kept[position] / count : 0;
    const bar = element("i");
    bar.style.height = `${100 * share}%`;
    return element("figure", { title: `${kept[position]} of ${count} drafts` }, element("b", {}, percent(share, 1)),
      element("div", { class: "column" }, bar), element("span", {}, `${position + 1}`), element("span", {}, `${kept[position]}/${count}`));
  });
  $("positions").replaceChildren(...(shown.length ? shown : [element("p", { class: "empty" }, "Nothing was drafted.")]));
}

function drawLegend() {
  const target = status.tiers.length - 1;
  const items = status.tiers.slice(0, target).map((tier, index) =>
    element("li", {}, element("span", { class: `swatch accepted tier-${index}` }), `accepted from ${tier.name}`));
  for (const origin of ["recovered", "bonus", "plain"]) items.push(element("li", { title: NAMES[origin] }, element("span", { class: `swatch ${origin}` }), origin));
  $("legend").replaceChildren(...items);
}

function drawPools() {
  $("pools").replaceChildren(...status.pools.map((pool) => {
    const tiers = pool.tiers.map((index) => status.tiers[index]);
    const kinds = tiers.map((tier) => (tier.emulated ? "EMULATED" : tier.kind === "ngram" || tier.kind === "suffix" ? tier.kind : `${tier.kind}, ${tier.weights}`) + (tier.ranks > 1 ? `, ${tier.ranks} ranks` : ""));
    const replicas = pool.replicas.map((replica) => {
      const used = element("i", { class: "used" }), cached = element("i", { class: "cached" });
      used.style.width = `${replica.pages ? 100 * replica.used_pages / replica.pages : 0}%`;
      cached.style.width = `${replica.pages ? 100 * replica.cached_pages / replica.pages : 0}%`;
      const kv = replica.pages ? `${replica.used_pages} of ${replica.pages} KV pages in use, ${replica.cached_pages} kept for reuse` : "no KV pages";
      return element("div", { class: "replica" }, element("span", {}, `${replica.sequences} of ${replica.max_sequences} sequences`),
        element("div", { class: "kv", role: "img", "aria-label": kv, title: kv }, used, cached), element("span", {}, kv));
    });
    const silent = pool.num_replicas - pool.replicas.length;
    const count = pool.num_replicas === 0 ? "asleep" : `${pool.num_replicas} replica${pool.num_replicas === 1 ? "" : "s"}${silent > 0 ? `, ${silent} without an answer` : ""}`;
    return element("div", { class: "pool" }, element("h3", {}, tiers.map((tier) => tier.name).join(" + ")),
      element("p", { class: "figures" }, `${kinds.join(" + ")} · ${count}`), ...replicas);
  }));
  $("load").textContent = `${status.load.running} running, ${status.load.waiting} waiting`;
}

async function poll() {
  try {
    const response = await fetch("/v1/outrider/status", { headers: headers() });
    if (!response.ok) throw await refused(response);
    const first = status === null;
    status = await response.json();
    $("model").textContent = status.model + (status.tiers.some((tier) => tier.emulated) ? " (EMULATED devices, no model runs)" : "");
    $("notice").hidden = true;
    if (first) drawLegend();
    drawPools();
  } catch (error) {
    $("notice").textContent = `the pools are not known: ${error.message}`;
    $("notice").hidden = false;
  } finally {
    setTimeout(poll, POLL_MS);
  }
}

$("ask").addEventListener("submit", (event) => { event.preventDefault(); run(); });
$("stop").addEventListener("click", () => running?.abort());
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); run(); }
  if (event.key === "Escape") running?.abort();
});
poll();
