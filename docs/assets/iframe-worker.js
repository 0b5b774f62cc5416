// The search runs in a web worker, which browsers refuse to pages that are opened as files. For
// these, a hidden frame stands in: it runs the worker's script and passes messages on.
if (location.protocol === "file:") {
  const load = (inner, url) =>
    new Promise((resolve, reject) => {
      const script = inner.document.createElement("script");
      script.src = new URL(url, location.href).href;
      script.onload = resolve;
      script.onerror = () => reject(new Error(`cannot load ${url}`));
      inner.document.head.append(script);
    });

  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = "<!DOCTYPE html><title>search</title>";
      this.frame = frame;
      this.ready = new Promise((resolve, reject) => {
        frame.addEventListener("load", () => {
          const inner = frame.contentWindow;
          inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          inner.importScripts = (...urls) =>
            urls.reduce((done, next) => done.then(() => load(inner, next)), Promise.resolve());
          load(inner, url).then(() => resolve(inner), reject);
        }, { once: true });
      });
      if (document.body) document.body.append(frame);
      else addEventListener("DOMContentLoaded", () => document.body.append(frame));
    }

    postMessage(data) {
      this.ready.then((inner) => inner.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
