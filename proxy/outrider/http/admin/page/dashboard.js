// Asks /status once a second and shows it. Everything is put in as text, never as markup: names of objects are anybody's.
"use strict";

const EVERY_MS = 1000;
// All members are asked for what they have of each dataset: so often, and so many are shown.
const SHARES_EVERY_MS = 5000, SHARES_SHOWN = 12;
const ALL_SOURCES = [["disk", "Disk: hits"], ["flight", "While being fetched"], ["peer", "Other members"], ["origin", "Past the cache"]];
const STACKED = ALL_SOURCES.map(([name]) => name);
const ALONE = ALL_SOURCES.filter(([name]) => name !== "peer");
const MEMBER_STATES = {alive: "alive", away: "away", left_out: "left out"};
const STATES = {c: "cached", R: "cached and read this epoch", o: "partly cached, or being fetched", r: "read and evicted", a: "not cached"};
// A reader that was answered last so many seconds ago is not judged by that any more.
const SILENT_S = 20;
const TOKEN = "outrider-admin-token";
const $ = (id) => document.getElementById(id);
let paused = false, timer = 0, asked = 0, sharesAsked = 0, rates = null, cursorAt = -1, sources = ALONE;

// -- words -------------------------------------------------------------------------------------------------------

function bytes(count) {
  if (count < 0) return `-${bytes(-count)}`;
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let unit = 0, amount = Number(count) || 0;
  while (amount >= 999.5 && unit < units.length - 1) { amount /= 1000; unit += 1; }
  return `${amount.toFixed(unit === 0 || amount >= 99.5 ? 0 : 1)} ${units[unit]}`;
}
const whole = (count) => Math.round(Number(count) || 0).toLocaleString("en-US");
const percent = (part) => part > 0 && part < 0.1 ? `${(100 * part).toFixed(1)} %` : `${Math.round(100 * part)} %`;
const dollars = (amount) => `$${amount.toFixed(amount < 10 ? 2 : 0)}`;
const many = (count, word) => `${Number(count) ? whole(count) : "no"} ${word}${Number(count) > 1 ? "s" : ""}`;
const objectsOf = ({state, objects}) => objects.wanted ? `${objects.on_disk ? whole(objects.on_disk) : "none"} of ${many(objects.wanted, "object")}`
  : state === "running" ? "looks for the objects" : "no object";
function span(seconds) {
  const s = Math.round(seconds);
  if (s < 120) return `${s} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  return s < 172800 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86400)} days`;
}

// -- pieces of the page ------------------------------------------------------------------------------------------

function put(id, text, raw) {
  const element = typeof id === "string" ? $(id) : id;
  if (element.textContent !== text) element.textContent = text;
  if (raw !== undefined) element.dataset.raw = String(raw);
}
// Commands and settings stand between backticks.
function putCommands(element, text) {
  if (element.dataset.text === text) return;
  element.dataset.text = text;
  element.replaceChildren(...text.split("`").map((part, index) => (index % 2 ? make("code", "", part) : part)));
}
function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}
function fill(bar, part) {
  const width = Math.max(0, Math.min(1, part || 0));
  bar.firstElementChild.style.width = `${(100 * width).toFixed(1)}%`;
  bar.setAttribute("aria-valuenow", String(Math.round(100 * width)));
}
function meter(label) {
  const bar = make("span", "bar");
  bar.append(make("i"));
  bar.setAttribute("role", "meter");
  bar.setAttribute("aria-label", label);
  bar.setAttribute("aria-valuemin", "0");
  bar.setAttribute("aria-valuemax", "100");
  return bar;
}
function numbers(...labels) {
  return labels.map((label) => {
    const cell = make("td", "n");
    cell.dataset.label = label;
    return cell;
  });
}
// The children of `parent`, one for each item; what is there already stays, so that focus and selection do too.
function rows(parent, items, create, update) {
  while (parent.children.length > items.length) parent.lastElementChild.remove();
  items.forEach((item, index) => {
    if (!parent.children[index]) parent.append(create());
    update(parent.children[index], item);
  });
}

// -- the numbers -------------------------------------------------------------------------------------------------

function show(status) {
  sources = status.cluster ? ALL_SOURCES : ALONE;
  const served = status.served_bytes, total = sources.reduce((sum, [name]) => sum + served[name], 0);
  const settings = status.settings || {};
  put("facts", [`${status.version}`, `in front of ${status.origin || "AWS S3"}`, `up ${span(status.uptime_s)}`,
    `policy ${settings.policy}`, `freshness ${settings.freshness}`].join(" · "));
  showVerdict(status.verdict);
  put("hit", total ? percent(served.disk / total) : "–", total ? served.disk / total : 0);
  put("hit-note", total ? `${bytes(served.disk)} of ${bytes(total)}` : "nothing served yet");
  const now = latest(status.throughput);
  put("now", `${bytes(now.disk + now.flight + now.peer + now.origin)}/s`);
  put("now-note", `the bucket sends ${now.bucket ? `${bytes(now.bucket)}/s` : "nothing"}`);
  showSaved(status.saved);
  const disk = status.disk;
  put("disk", bytes(disk.used_bytes), disk.used_bytes);
  const disks = (status.disks || []).length;
  put("disk-note", `of ${bytes(disk.budget_bytes)}${disks > 1 ? ` on ${disks} disks` : ""}, ${many(status.blocks, "block")}`);
  fill($("disk-bar"), disk.used_bytes / disk.budget_bytes);
  const ahead = status.prefetch;
  put("window", bytes(ahead.window_bytes), ahead.window_bytes);
  put("window-note", !ahead.fetched_bytes ? "nothing fetched ahead so far"
    : `${bytes(ahead.fetched_bytes)} fetched ahead so far, ${ahead.wasted_bytes ? bytes(ahead.wasted_bytes) : "none"} of it evicted unread`);
  fill($("window-bar"), ahead.window_bytes / ahead.window_bytes_max);
  showSources(status, now);
  rates = status.throughput;
  drawChart();
  put("datasets-sub", status.datasets_known > status.datasets.length
    ? `${status.datasets.length} of ${whole(status.datasets_known)}, the latest read first` : "the latest read first");
  showCluster(status.cluster, served, total);
  showDatasets(status.datasets);
  showReaders(status.readers);
  showTenants(status.tenants || [], disk.budget_bytes);
  showSizes(status);
  showWarm(status.warmups || [], status.pins || []);
  showErrors(status.errors);
}

// As `outrider stats`: only what was saved counts as such, and what was spent stands behind it.
function showSaved(saved) {
  const size = saved.egress_bytes, gets = saved.gets, money = saved.egress_dollars + saved.request_dollars;
  // Half a cent is no cent.
  const gains = [...(money >= 0.005 ? [dollars(money)] : []), ...(size > 0 ? [bytes(size)] : []),
    ...(gets > 0 ? [`${whole(gets)} GETs and HEADs`] : [])];
  const costs = [...(saved.spent ? [saved.spent] : []), ...(gets < 0 ? [`${whole(-gets)} GETs and HEADs more than readers asked for`] : []),
    ...(money <= -0.005 ? [`${dollars(-money)} more than without the cache`] : [])];
  put("saved", gains.length ? gains[0] : "nothing yet", size);
  put("saved-note", [...(gains.length > 1 ? [gains.slice(1).join(", ")] : []), ...costs].join("; "));
}

function showVerdict({slow, level, text, next, alerts}) {
  put("verdict", `${text[0].toUpperCase()}${text.slice(1)}.`);
  // A fault is red, whatever else there is to say.
  $("headline").className = `verdict ${alerts.length ? "bad" : level} ${slow}`;
  $("next").hidden = !next;
  putCommands($("next"), next);
  $("alerts").hidden = !alerts.length;
  rows($("alerts"), alerts, () => make("li"), putCommands);
}

function latest(throughput) {
  return Object.fromEntries([...STACKED, "bucket"].map((name) => [name, (throughput[name] || []).at(-1) || 0]));
}

function showSources(status, now) {
  const items = sources.map(([name, label]) => [name, label, now[name], status.served_bytes[name]]);
  items.push(["bucket", "Out of the bucket", now.bucket, status.origin_bytes]);
  rows($("sources"), items, () => {
    const row = make("tr"), head = make("th");
    head.scope = "row";
    head.append(make("i", "key"), make("span"));
    row.append(head, make("td"), make("td"));
    return row;
  }, (row, [name, label, rate, total]) => {
    const [head, rateCell, totalCell] = row.children;
    head.firstElementChild.className = `key ${name}`;
    put(head.lastElementChild, label);
    put(rateCell, `${bytes(rate)}/s`);
    put(totalCell, bytes(total), total);
    totalCell.id = `total-${name}`;
  });
}

function showCluster(cluster, served, total) {
  $("cluster").hidden = !cluster;
  if (!cluster) return;
  put("cluster-sub", `as ${cluster.name} sees it; members from ${cluster.source}, ring ${cluster.ring}`);
  const twice = Object.entries(cluster.names_used_twice);
  $("cluster-wrong").hidden = !twice.length;
  put("cluster-wrong", twice.map(([name, at]) => `${name} is the name of several members: ${at.join(", ")}. Give each its own --peer-name: only the one that began last is asked.`).join(" "));
  put("cluster-share", total ? percent(served.peer / total) : "–", total ? served.peer / total : 0);
  put("cluster-note", ["of the bytes served came straight from other members",
    ...(cluster.near_bytes ? [`${bytes(cluster.near_bytes)} of their blocks are kept here`] : []),
    ...Object.entries(cluster.duplicate_fetches).map(([why, count]) => `${many(count, "block")} fetched twice (${why})`),
    ...(cluster.ring_disagreements ? [`${many(cluster.ring_disagreements, "read")} by members that see another ring`] : []),
    ...(cluster.is_listed ? [] : ["this node is not listed: the others do not ask it"])].join(" · "));
  rows($("members"), cluster.members, () => {
    const row = make("tr"), name = make("td"), state = make("td");
    name.append(make("span"), make("small"));
    state.append(make("span"), make("small"));
    row.append(name, state, ...numbers("Cache", "From it", "To it", "First byte"));
    return row;
  }, (row, member) => {
    const [name, state, cache, came, sent, wait] = row.children, ms = (seconds) => seconds === null ? "–" : `${(1000 * seconds).toFixed(1)}\u00a0ms`;
    put(name.firstElementChild, `${member.name || "?"}${member.is_me ? " (this node)" : ""}`);
    put(name.lastElementChild, `${member.address}${member.zone ? `, zone ${member.zone}` : ""}`);
    state.firstElementChild.className = `member-state ${member.state}`;
    put(state.firstElementChild, `${MEMBER_STATES[member.state]}${member.since_s === null ? "" : ` for ${span(member.since_s)}`}${member.is_leaving ? ", leaving" : ""}`);
    put(state.lastElementChild, [member.why, ...(member.failures ? [`${many(member.failures, "read")} failed`] : []),
      ...(member.ring && member.ring !== cluster.ring && member.zone === cluster.zone ? [`sees ring ${member.ring}`] : [])].filter(Boolean).join(", "));
    put(cache, member.weight_bytes ? bytes(member.weight_bytes) : "–");
    put(came, member.is_me || member.bytes_in === null ? "–" : bytes(member.bytes_in), member.bytes_in);
    put(sent, member.is_me || member.bytes_out === null ? "–" : bytes(member.bytes_out), member.bytes_out);
    put(wait, member.is_me || member.latency_s.p50 === null ? "–" : `${ms(member.latency_s.p50)}, ${ms(member.latency_s.p99)}`);
  });
}

function showShares(shares) {
  $("shares-table").hidden = !shares.datasets.length;
  put("shares-note", shares.silent.map((one) => `${one.name} did not answer: ${one.why}`).join(" · "));
  rows($("shares"), shares.datasets.slice(0, SHARES_SHOWN), () => {
    const row = make("tr"), held = make("td");
    held.append(meter("Cached in the cluster"), make("span"), make("small"));
    row.append(make("td"), ...numbers("Size"), held);
    return row;
  }, (row, dataset) => {
    const [name, size, held] = row.children, [bar, part, members] = held.children;
    put(name, `s3://${dataset.bucket}/${dataset.name}`);
    put(size, bytes(dataset.bytes));
    fill(bar, dataset.held);
    put(part, `${percent(dataset.held)} of its bytes are in some cache`, dataset.held_bytes);
    put(members, shares.members.map((member) => `${member} has ${percent((dataset.members[member] || {share: 0}).share)}`).join(", ")
      + (dataset.copies_bytes ? `; ${bytes(dataset.copies_bytes)} are in more than one` : ""));
  });
}

function showDatasets(datasets) {
  rows($("datasets"), datasets.length ? datasets : [null], () => {
    const one = make("article", "dataset"), map = make("div", "map");
    map.setAttribute("role", "img");
    one.append(make("h3"), make("p"), map);
    return one;
  }, (one, dataset) => {
    const [title, facts, map] = one.children;
    if (dataset === null) {
      put(title, "");
      putCommands(facts, "Nothing was read yet. Start a job with `AWS_ENDPOINT_URL` set to the S3 port of this proxy (`--listen`).");
      map.replaceChildren();
      map.removeAttribute("aria-label");
      return;
    }
    put(title, dataset.bucket ? `${dataset.bucket}/${dataset.name}` : dataset.name);
    const words = [];
    if (dataset.objects !== undefined) {
      words.push(`${many(dataset.objects, "object")}${dataset.all_known ? "" : " seen so far"}, ${bytes(dataset.bytes)}`, `${percent(dataset.cached)} cached`);
      if (dataset.epoch !== null) words.push(`epoch ${dataset.epoch + 1}: ${whole(dataset.read_this_epoch)} of ${whole(dataset.epoch_objects)} read${dataset.order_of_a_seed ? ", order known by its seed" : dataset.order_known ? ", order known" : ""}`);
    }
    words.push(`${dataset.requests ? many(dataset.requests, "read") : "not read yet"}, ${many(dataset.bucket_gets, "request")} to the bucket`);
    putCommands(facts, words.join(" · "));
    const cells = [...(dataset.shards || "")];
    map.classList.toggle("many", cells.length > 200);
    rows(map, cells, () => make("i"), (cell, state) => {
      const name = `cell ${state}`;
      if (cell.className !== name) cell.className = name;
    });
    map.setAttribute("aria-label", `${title.textContent}: ${Object.entries(STATES).map(([letter, state]) =>
      [cells.filter((cell) => cell === letter).length, state]).filter(([count]) => count).map(([count, state]) => `${count} ${state}`).join(", ")}`);
  });
}

function showReaders(readers) {
  rows($("readers"), readers.length ? readers : [null], () => {
    const row = make("tr"), stall = make("div", "stall");
    stall.append(make("span"), meter("Stall"));
    row.append(make("td"), make("td"), make("td", "n"), make("td"), make("td"));
    row.children[3].append(stall);
    return row;
  }, (row, reader) => {
    const [name, dataset, rate, stall, verdict] = row.children, [part, bar] = stall.firstElementChild.children;
    stall.firstElementChild.hidden = reader === null || reader.stall === null;
    row.className = reader === null || (reader.silent_s > SILENT_S && !reader.reads_under_way) ? "quiet" : "";
    if (reader === null) {
      put(name, "Nobody has read of late.");
      [dataset, rate, verdict].forEach((cell) => put(cell, ""));
      return;
    }
    put(name, reader.name);
    put(dataset, `${reader.bucket}/${reader.dataset}`);
    put(rate, `${bytes(reader.bytes_s)}/s`);
    put(part, reader.stall === null ? "" : percent(reader.stall));
    bar.className = `bar ${reader.level}`;
    fill(bar, reader.stall);
    put(verdict, ofReader(reader));
  });
}

function ofReader(reader) {
  if (reader.waiting_s > SILENT_S || (reader.silent_s > SILENT_S && reader.waiting_s !== null)) return `waiting for ${span(reader.waiting_s)}`;
  if (reader.silent_s <= SILENT_S) return reader.verdict;
  return reader.reads_under_way ? "reading at its own pace" : `silent for ${span(reader.silent_s)}`;
}

function showTenants(tenants, capacity) {
  $("tenants-section").hidden = !tenants.length;
  rows($("tenants"), tenants, () => {
    const row = make("tr"), cached = make("td");
    cached.append(meter("Cached, of its share"), make("span"), make("small"));
    row.append(make("td"), ...numbers("Rate", "Since start", "Line share"), cached);
    return row;
  }, (row, tenant) => {
    const [name, rate, served, line, cached] = row.children, [bar, part, note] = cached.children;
    const has = tenant.cached_bytes, share = tenant.cache_share * capacity;
    put(name, tenant.name);
    put(rate, `${bytes(tenant.bytes_s)}/s`);
    put(served, bytes(tenant.served_bytes), tenant.served_bytes);
    put(line, tenant.line_share === null ? "–" : percent(tenant.line_share));
    bar.hidden = !share;
    fill(bar, has / share);
    put(part, has === null ? "–" : `${bytes(has)} cached${share ? ` of ${bytes(share)}` : ""}`, has);
    put(note, !share ? "no share of the cache" : `${has > share ? "beyond its" : "a"} share of ${percent(tenant.cache_share)}`);
  });
}

// Nothing is known before the second epoch.
function showSizes(status) {
  const sizes = Object.entries(status.hit_ratio_by_size).sort((one, other) => one[0] - other[0]);
  $("sizes-section").hidden = !sizes.length;
  rows($("sizes"), sizes, () => {
    const row = make("tr"), head = make("th"), middle = make("td");
    head.scope = "row";
    middle.append(meter("Hit ratio"));
    row.append(head, middle, make("td"));
    return row;
  }, (row, item) => {
    const [head, middle, part] = row.children;
    const isNow = item[0] === "1";
    put(head, `${bytes(item[0] * status.disk.budget_bytes)}${isNow ? ", as now" : ""}`);
    row.className = isNow ? "now" : "";
    fill(middle.firstElementChild, item[1]);
    put(part, percent(item[1]));
  });
}

function showWarm(warmups, pins) {
  $("warm-section").hidden = !(warmups.length || pins.length);
  const jobs = [
    ...warmups.map((one) => ({
      name: one.name, part: one.bytes.wanted ? one.bytes.on_disk / one.bytes.wanted : (one.state === "done" ? 1 : 0),
      failures: one.failures,
      words: `${one.state}: ${objectsOf(one)}`
        + (one.bytes.wanted ? `, ${bytes(one.bytes.on_disk)} of ${bytes(one.bytes.wanted)}` : "")
        + (one.objects.wanted && one.objects.failed ? `, ${whole(one.objects.failed)} failed` : "")
        + (one.state !== "done" && one.rate_bytes_per_s ? `, ${bytes(one.rate_bytes_per_s)}/s` : "")
        + (one.state !== "done" && one.eta_s !== null && one.eta_s !== undefined ? `, ${span(one.eta_s)} left` : ""),
    })),
    ...pins.map((one) => ({
      name: `pin ${one.name}`, part: one.bytes.wanted ? one.bytes.on_disk / one.bytes.wanted : 0, failures: one.failures,
      words: `${bytes(one.bytes.on_disk)} of ${bytes(one.bytes.wanted)} here, ${bytes(one.reserved_bytes)} reserved`,
    })),
  ];
  rows($("warmups"), jobs, () => {
    const job = make("div", "job"), head = make("p");
    head.append(make("strong"), make("span", "quiet"));
    const bar = meter("");
    bar.setAttribute("role", "progressbar");
    job.append(head, bar, make("small"));
    return job;
  }, (job, {name, part, words, failures}) => {
    const [head, bar, why] = job.children, first = failures[0];
    put(why, first ? `${first.object ? `${first.object}: ` : ""}${first.error}${failures.length > 1 ? ", and others" : ""}` : "");
    put(head.firstElementChild, name);
    put(head.lastElementChild, words);
    bar.setAttribute("aria-label", name);
    fill(bar, part);
  });
}

function showErrors(errors) {
  rows($("errors"), errors.length ? errors : [null], () => {
    const item = make("li");
    item.append(make("span"), make("small"));
    return item;
  }, (item, error) => {
    const [what, detail] = item.children;
    what.className = error === null ? "quiet" : error.level;
    put(what, error === null ? "None." : `${error.what}${error.times > 1 ? ` (${whole(error.times)} times)` : ""}`);
    put(detail, error === null ? "" : `${new Date(1000 * error.at).toLocaleTimeString()} ${error.detail}`);
  });
}

// -- the chart ---------------------------------------------------------------------------------------------------

const WIDE = 1000, HIGH = 220, STEPS = 120;

function nice(most) {
  const power = 10 ** Math.floor(Math.log10(Math.max(most, 1)));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((step) => step * power).find((step) => step >= most) || most;
}

function drawChart() {
  const at = (name) => rates[name] || [];
  const count = at("disk").length;
  const stacked = (names, index) => names.reduce((sum, name) => sum + (at(name)[index] || 0), 0);
  // Half of a smaller scale could not be distinguished from the whole: both are `1 B/s`.
  let most = 1000;
  for (let i = 0; i < count; i += 1) most = Math.max(most, stacked(STACKED, i), at("bucket")[i]);
  const top = nice(most), x = (index) => WIDE - (count - 1 - index) * WIDE / (STEPS - 1), y = (value) => HIGH - value / top * (HIGH - 4);
  const line = (names) => Array.from({length: count}, (_, i) => `${x(i).toFixed(1)} ${y(stacked(names, i)).toFixed(1)}`);
  const area = (names) => count > 1 ? `M${x(0).toFixed(1)} ${HIGH}L${line(names).join("L")}L${WIDE} ${HIGH}Z` : "";
  STACKED.forEach((name, index) => $(`p-${name}`).setAttribute("d", area(STACKED.slice(0, index + 1))));
  $("p-bucket").setAttribute("d", count > 1 ? `M${line(["bucket"]).join("L")}` : "");
  rows($("grid"), [0, 0.25, 0.5, 0.75, 1], () => document.createElementNS("http://www.w3.org/2000/svg", "line"),
    (line, part) => Object.entries({x1: 0, x2: WIDE, y1: y(part * top), y2: y(part * top)}).forEach(([name, at]) => line.setAttribute(name, String(at))));
  put("chart-top", `${bytes(top)}/s`);
  put("chart-middle", `${bytes(top / 2)}/s`);
  const last = Math.max(0, count - 1);
  $("chart").setAttribute("aria-label", `Throughput of the last two minutes. Now ${bytes(stacked(STACKED, last))} a second served, ${bytes(at("bucket")[last])} a second out of the bucket. Arrow keys move through time.`);
  showCursor();
}

// `cursorAt`: so many seconds ago; -1: no cursor.
function showCursor() {
  const cursor = $("cursor"), count = rates && rates.disk ? rates.disk.length : 0, index = count - 1 - cursorAt;
  const on = cursorAt >= 0 && index >= 0;
  cursor.classList.toggle("on", on);
  if (!on) { put("readout", ""); return; }
  const x = WIDE - cursorAt * WIDE / (STEPS - 1);
  cursor.setAttribute("x1", String(x));
  cursor.setAttribute("x2", String(x));
  put("readout", `${cursorAt} s ago: ${sources.map(([name, label]) => `${label.toLowerCase()} ${bytes((rates[name] || [])[index])}/s`).join(", ")}, out of the bucket ${bytes(rates.bucket[index])}/s`);
}
function moveCursor(to) {
  const count = rates && rates.disk ? rates.disk.length : 0;
  cursorAt = to < 0 ? -1 : Math.min(to, count - 1);
  showCursor();
}
$("chart").addEventListener("keydown", (event) => {
  const moves = {ArrowLeft: 1, ArrowRight: -1, PageUp: 10, PageDown: -10};
  if (event.key in moves) moveCursor(Math.max(0, cursorAt + moves[event.key]));
  else if (event.key === "Home") moveCursor(STEPS);
  else if (event.key === "End") moveCursor(0);
  else if (event.key === "Escape") moveCursor(-1);
  else return;
  event.preventDefault();
});
$("chart").addEventListener("pointermove", (event) => {
  const box = $("chart").getBoundingClientRect();
  moveCursor(Math.round((1 - (event.clientX - box.left) / box.width) * (STEPS - 1)));
});
$("chart").addEventListener("pointerleave", () => moveCursor(-1));
$("chart").addEventListener("blur", () => moveCursor(-1));

// -- asking ------------------------------------------------------------------------------------------------------

function showState(text, className) {
  put("state", text);
  $("state").className = className;
}

// The rest of the page is not held up by a member that does not answer.
async function askShares(headers) {
  if (Date.now() - sharesAsked < SHARES_EVERY_MS) return;
  sharesAsked = Date.now();
  try {
    const reply = await fetch("cluster/datasets", {headers, cache: "no-store"});
    if (reply.ok) showShares(await reply.json());
  } catch (error) {
    console.error(error);
  }
}

async function ask() {
  const token = sessionStorage.getItem(TOKEN), own = ++asked;
  const headers = token ? {Authorization: `Bearer ${token}`} : {};
  let reply;
  try {
    reply = await fetch("status", {headers, cache: "no-store"});
    const status = reply.ok ? await reply.json() : null;
    // A pause, or a newer question, came before the answer.
    if (own !== asked) return;
    if (reply.status === 401) { login(token); return; }
    if (!reply.ok) throw new Error(`answered ${reply.status}`);
    $("login").hidden = true;
    $("board").hidden = false;
    show(status);
    if (status.cluster) askShares(headers);
    showState(status.ready ? "live" : "stopping", status.ready ? "live" : "lost");
  } catch (error) {
    if (own !== asked) return;
    console.error(error);
    showState(reply && reply.ok ? "cannot show what it answered" : "not reachable", "lost");
  }
  again();
}
function again() {
  clearTimeout(timer);
  if (!paused && !document.hidden) timer = setTimeout(ask, EVERY_MS);
}
function login(refused) {
  sessionStorage.removeItem(TOKEN);
  $("board").hidden = true;
  $("login").hidden = false;
  put("login-note", refused ? "That is not the token of this proxy." : "");
  showState("locked", "");
  $("token").focus();
}
$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, $("token").value);
  $("token").value = "";
  ask();
});
$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  put("pause", paused ? "Resume" : "Pause");
  if (paused) { asked++; clearTimeout(timer); showState("paused", ""); } else ask();
});
document.addEventListener("visibilitychange", () => { if (!document.hidden && !paused && $("login").hidden) ask(); });
ask();
