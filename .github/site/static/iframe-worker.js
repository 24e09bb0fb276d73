// Browsers start no worker of a page that was opened as a file. This one is a frame, so that the search works there.
if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.frame.srcdoc =
        `<script>postMessage = data => parent.postMessage(data, "*")</script><script src="${url}"></script>`
      this.loaded = new Promise(resolve => (this.frame.onload = resolve))
      window.addEventListener("message", ({ source, data }) => {
        if (source === this.frame.contentWindow) this.dispatchEvent(new MessageEvent("message", { data }))
      })
      document.body.append(this.frame)
    }

    async postMessage(data) {
      await this.loaded
      this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
