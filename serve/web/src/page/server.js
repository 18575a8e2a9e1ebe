async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    for (let at; (at = held.indexOf("\n\n")) >= 0; held = held.slice(at + 2)) {
      const data = held.slice(0, at).split("\n").filter((line) => line.startsWith("data:"));
      if (data.length) yield data.map((line) => line.slice(5).trimStart()).join("\n");
    }
  }
}

async function refusal(response) {
  try { return (await response.json()).error; } catch { return { message: `The server answered ${response.status}.` }; }
}
function plain(error) {
  return error instanceof TypeError ? "The server could not be reached." : error.message;
}

/** Numbers of `/metrics` by name; those with labels are left out. */
async function metrics() {
  const response = await fetch("metrics");
  const lines = response.ok ? (await response.text()).matchAll(/^spillway_(\w+) (\S+)$/gm) : [];
  return new Map([...lines].map(([, name, value]) => [name, Number(value)]));
}

function sized(bytes) {
  const power = bytes < 1 ? 0 : Math.min(Math.floor(Math.log2(bytes) / 10), 4);
  return `${(bytes / 1024 ** power).toFixed(power ? 1 : 0)}\u00a0${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}
/** Memory of the device, and what does not fit there. */
function showMemory(numbers) {
  const [device, host, disk, out, back] =
    ["device_bytes", "host_bytes", "disk_bytes", "bytes_out_total", "bytes_in_total"].map((name) => numbers.get(name));
  const held = (tier) => {
    const budget = numbers.get(`${tier}_budget_bytes`);
    return sized(numbers.get(`${tier}_bytes`)) + (budget ? ` of ${sized(budget)}` : "");
  };
  $("memory").hidden = device === undefined;
  if (device === undefined) return;
  const parts = [`Device: ${held("device")}`, host || out ? `spilled to RAM: ${held("host")}` : "nothing spilled"];
  if (disk) parts.push(`on the disk: ${held("disk")}`);
  if (numbers.has("kv_bytes")) parts.push(`keys and values: ${held("kv")}`);
  if (out || back) parts.push(`moved: ${sized(out + back)}`);
  $("memory").textContent = parts.join(" · ");
}

let watching = null;
let answered = 0;
/** Polls the server's health and numbers: often while it fails or answers, rarely otherwise. */
async function watch() {
  clearTimeout(watching);
  let trouble = null;
  try {
    const response = await fetch("health");
    if (!response.ok) {
      const { status, detail } = await response.json();
      trouble = status === "loading" ? `The model is not ready yet: ${detail}.` : "The server is shutting down.";
    } else {
      // A counter that falls belongs to another process, perhaps with another model.
      const numbers = await metrics();
      showMemory(numbers);
      const count = numbers.get("request_seconds_count") ?? 0;
      if (count < answered) model = null;
      answered = count;
      const listed = model ? null : await fetch("v1/models");
      if (listed?.ok) {
        model = (await listed.json()).data[0];
        show();
      }
    }
  } catch {
    trouble = "The server is away. Start it again; this page will notice.";
    $("memory").hidden = true;
    model = null;
  }
  const banner = $("banner");
  if (trouble !== null && banner.textContent !== trouble) banner.textContent = trouble;
  banner.hidden = trouble === null;
  if (trouble === null) banner.textContent = "";
  $("model").textContent = model ? `${model.id}, reads ${model.max_model_len} tokens` : "";
  clearTimeout(watching);
  watching = setTimeout(() => { if (!document.hidden) watch(); }, trouble === null && !lives.size ? 10000 : 1000);
}
