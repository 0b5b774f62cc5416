// Calls of the network's function, which is in a WebAssembly module beside this file.

/** The inputs and the outputs by name, in order: their element type and shape. */
export const inputs = @INPUTS@;
export const outputs = @OUTPUTS@;

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

const length = (port) => port.shape.reduce((a, b) => a * b, 1);

export class Network {
  constructor(instance, weights) {
    const exported = instance.exports;
    exported._initialize?.();
    this.exports = exported;
    this.inputs = inputs;
    this.outputs = outputs;
    let end = exported.__heap_base.value;
    const place = (bytes) => {
      const start = Math.ceil(end / ALIGNMENT) * ALIGNMENT;
      end = start + bytes;
      return start;
    };
    const placed = (ports) => Object.entries(ports).map(([name, port]) => ({
      name, ...port, length: length(port), array: ARRAYS[port.type],
      start: place(length(port) * ARRAYS[port.type].BYTES_PER_ELEMENT),
    }));
    this.given = placed(inputs);
    this.results = placed(outputs);
    const passed = WEIGHTS ? [place(WEIGHTS_BYTES)] : [];
    this.arguments = [
      ...this.given.map((x) => x.start), ...this.results.map((x) => x.start), ...passed,
      place(WORKSPACE), WORKSPACE,
    ];
    const missing = end - exported.memory.buffer.byteLength;
    if (missing > 0) exported.memory.grow(Math.ceil(missing / 65536));
    if (WEIGHTS) {
      if (weights.byteLength !== WEIGHTS_BYTES)
        throw new RangeError(`${weights.byteLength} bytes of weights, expected ${WEIGHTS_BYTES}`);
      new Uint8Array(exported.memory.buffer, passed[0], WEIGHTS_BYTES).set(weights);
    }
  }

  /**
   * Run it: typed arrays by the name of the input in, new ones by the name of the output out.
   * Elements are in row-major order.
   */
  run(arrays) {
    for (const name of Object.keys(arrays))
      if (!Object.hasOwn(inputs, name))
        throw new TypeError(`there is no input '${name}'; there are ${Object.keys(inputs)}`);
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
    const code = this.exports[`${NAME}_run`](...this.arguments);
    if (code !== 0) throw new Error(this.message(code));
    return Object.fromEntries(this.results.map(
      (port) => [port.name, new port.array(memory, port.start, port.length).slice()]));
  }

  message(code) {
    const bytes = new Uint8Array(this.exports.memory.buffer);
    const start = this.exports[`${NAME}_error`](code);
    return new TextDecoder().decode(bytes.subarray(start, bytes.indexOf(0, start)));
  }
}
