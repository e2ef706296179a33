// Search runs in a web worker, which browsers refuse to pages opened from a folder (file:). There, and only there,
// a hidden frame runs the same script instead, so that search works without a server.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      frame.title = "search"
      document.body.appendChild(frame)
      this.inner = frame.contentWindow
      this.inner.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.ready = new Promise((done, failed) => {
        const script = this.inner.document.createElement("script")
        script.src = url
        script.onload = done
        script.onerror = () => failed(new Error(`cannot load ${url}`))
        this.inner.document.body.appendChild(script)
      })
    }
    postMessage(data) {
      this.ready.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data })))
    }
    terminate() {
      this.inner.frameElement.remove()
    }
  }
  window.Worker = window.IFrameWorker
}
