// A page that is opened as a file may start no worker, and search is one: it runs in a frame then.
if (location.protocol === "file:") {
  window.Worker = class {
    #frame = document.createElement("iframe");
    #channel = new MessageChannel();

    constructor(url) {
      const { port1: outside, port2: port } = this.#channel;
      outside.onmessage = (event) => this.onmessage?.(event);
      this.#frame.hidden = true;
      this.#frame.onload = () => {
        const { contentWindow: inside, contentDocument: page } = this.#frame;
        inside.postMessage = (data) => port.postMessage(data);
        const script = page.createElement("script");
        script.onload = () => (port.onmessage = (event) => inside.onmessage(event));
        script.onerror = (event) => this.onerror?.(event);
        script.src = url;
        page.head.append(script);
      };
      document.body.append(this.#frame);
    }

    postMessage(data) {
      this.#channel.port1.postMessage(data);
    }

    terminate() {
      this.#channel.port1.close();
      this.#frame.remove();
    }
  };
}
