import { defineConfig } from "@helmr/sdk"

export default defineConfig({
  dirs: ["agents"],
})
