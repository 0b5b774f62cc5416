// Calls of the network's function, which is in a WebAssembly module beside this file.

// In the order of the network: objects have names that are numbers in another.
const INPUTS = @INPUTS@;
const OUTPUTS = @OUTPUTS@;
/** The inputs and the outputs by name: their element type and shape. */
export const inputs = Object.fromEntries(INPUTS);
export const outputs = Object.fromEntries(OUTPUTS);
/** The names of open sizes, which shapes have in place of numbers. */
const SIZES = @SIZES@;

const CODE = "@CODE@", WEIGHTS = "@WEIGHTS@", NAME = "@NAME@";
const WORKSPACE = @WORKSPACE@, WEIGHTS_BYTES = @WEIGHTS_BYTES@, ALIGNMENT = 64;
// Inputs that always have the same elements, as bytes; they need not be given.
const FIXED = @FIXED@;
const ARRAYS = {
  float32: Float32Array, float64: Float64Array, bool: Uint8Array,
  int8: Int8Array, uint8: Uint8Array, int16: Int16Array, uint16: Uint16Array,
  int32: Int32Array, uint32: Uint32Array, int64: BigInt64Array, uint64: BigUint64Array,
  float16: Uint16Array, // as bits
};

/**
 * Load the network; one that is loaded twice can run twice at the same time, in workers.
 *
 * Each argument is an URL, which may be relative to this file, or the bytes themselves; the first
 * one may be a WebAssembly.Module, too.  By default they are the files that Farkas wrote.
 */
export async function load(code = CODE, weights = WEIGHTS) {
  const module = code instanceof WebAssembly.Module
    ? code : await WebAssembly.compile(await bytesOf(code));
  const instance = await WebAssembly.instantiate(module, {});
  return new Network(instance, WEIGHTS ? await bytesOf(weights) : new Uint8Array(0));
}

async function bytesOf(source) {
  if (source instanceof ArrayBuffer) return new Uint8Array(source);
  if (ArrayBuffer.isView(source))
    return new Uint8Array(source.buffer, source.byteOffset, source.byteLength);
  const url = new URL(source, import.meta.url);
  if (url.protocol === "file:") {
    const files = await import(/* @vite-ignore */ "node:fs/promises");
    return new Uint8Array(await files.readFile(url));
  }
  const answer = await fetch(url);
  if (!answer.ok) throw new Error(`${url}: ${answer.status} ${answer.statusText}`);
  return new Uint8Array(await answer.arrayBuffer());
}

const product = (shape) => shape.reduce((a, b) => a * b, 1);

export class Network {
  constructor(instance, weights) {
    const exported = instance.exports;
    exported._initialize?.();
    this.exports = exported;
    this.inputs = inputs;
    this.outputs = outputs;
    this.end = exported.__heap_base.value;
    if (WEIGHTS) {
      if (weights.byteLength !== WEIGHTS_BYTES)
        throw new RangeError(`${weights.byteLength} bytes of weights, expected ${WEIGHTS_BYTES}`);
      this.weights = this.place(WEIGHTS_BYTES);
      new Uint8Array(exported.memory.buffer, this.weights, WEIGHTS_BYTES).set(weights);
    }
    this.shapes = OUTPUTS.map(([, port]) => this.place(8 * port.shape.length));
    this.begin = this.end;
    this.sizes = null; // those that arrays are placed for
  }

  /**
   * Run it: typed arrays by the name of the input in, new ones by the name of the output out.
   * Elements are in row-major order.  Open sizes follow from the lengths of arrays as far as one
   * of them is open in an input; `sizes` gives them by name, and what comes back has `shape`s.
   */
  run(arrays, sizes = {}) {
    for (const name of Object.keys(arrays))
      if (!Object.hasOwn(inputs, name))
        throw new TypeError(`there is no input '${name}'; there are ${Object.keys(inputs)}`);
    this.arrange(this.sizesOf(arrays, sizes));
    const memory = this.exports.memory.buffer;
    for (const port of this.given) {
      const own = new port.array(memory, port.start, port.length);
      const array = arrays[port.name];
      if (array === undefined && Object.hasOwn(FIXED, port.name)) {
        new Uint8Array(memory, port.start, own.byteLength).set(FIXED[port.name]);
        continue;
      }
      if (!(array instanceof port.array))
        throw new TypeError(`the input '${port.name}' has to be a ${port.array.name}`);
      if (array.length !== port.length)
        throw new RangeError(
          `the input '${port.name}' has ${array.length} elements, expected ${port.length}: ` +
          `[${port.shape}]`);
      own.set(array);
    }
    this.check(this.exports[`${NAME}_run`](...this.arguments));
    return Object.fromEntries(this.results.map((port) => {
      const found = new port.array(memory, port.start, port.length).slice();
      if (SIZES.length) found.shape = port.shape;
      return [port.name, found];
    }));
  }

  /** The open sizes in order, from those that are given and from the lengths of arrays. */
  sizesOf(arrays, sizes) {
    const known = { ...sizes };
    for (const [name, { shape }] of INPUTS) {
      const open = shape.filter((n) => typeof n === "string" && known[n] === undefined);
      if (open.length === 1 && arrays[name] !== undefined)
        known[open[0]] = arrays[name].length / product(shape.map((n) => known[n] ?? (n === open[0] ? 1 : n)));
    }
    return SIZES.map((name) => {
      if (!Number.isSafeInteger(known[name]))
        throw new RangeError(`the size '${name}' is ${known[name] ?? "not known: pass it"}`);
      return known[name];
    });
  }

  /** Place the arrays of a run for open sizes. */
  arrange(sizes) {
    if (this.sizes !== null && sizes.every((n, k) => n === this.sizes[k])) return;
    const passed = sizes.map(BigInt), known = Object.fromEntries(SIZES.map((n, k) => [n, sizes[k]]));
    if (SIZES.length) {
      const own = this.shapes.filter((_, k) => OUTPUTS[k][1].shape.length);
      this.check(this.exports[`${NAME}_shapes`](...passed, ...own));
    }
    const shapeOf = (start, count) =>
      [...new BigInt64Array(this.exports.memory.buffer, start, count)].map(Number);
    const made = OUTPUTS.map(([, { shape }], k) =>
      SIZES.length ? shapeOf(this.shapes[k], shape.length) : shape);
    this.sizes = null;
    this.end = this.begin;
    const placed = (name, { type }, shape) => {
      const array = ARRAYS[type], length = product(shape);
      return { name, array, shape, length, start: this.place(length * array.BYTES_PER_ELEMENT) };
    };
    this.given = INPUTS.map(([name, port]) =>
      placed(name, port, port.shape.map((n) => known[n] ?? n)));
    this.results = OUTPUTS.map(([name, port], k) => placed(name, port, made[k]));
    const bytes = SIZES.length ? this.exports[`${NAME}_workspace_bytes`](...passed) >>> 0 : WORKSPACE;
    this.arguments = [
      ...passed, ...[...this.given, ...this.results].map((x) => x.start),
      ...(WEIGHTS ? [this.weights] : []), this.place(bytes), bytes,
    ];
    this.sizes = sizes;
  }

  /** Memory for some bytes. */
  place(bytes) {
    const start = Math.ceil(this.end / ALIGNMENT) * ALIGNMENT, { memory } = this.exports;
    this.end = start + bytes;
    const missing = this.end - memory.buffer.byteLength;
    if (missing > 0) memory.grow(Math.ceil(missing / 65536));
    return start;
  }

  check(code) {
    if (code !== 0) throw new Error(this.message(code));
  }

  message(code) {
    const bytes = new Uint8Array(this.exports.memory.buffer);
    const start = this.exports[`${NAME}_error`](code);
    return new TextDecoder().decode(bytes.subarray(start, bytes.indexOf(0, start)));
  }
}
