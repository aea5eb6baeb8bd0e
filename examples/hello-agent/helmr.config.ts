import { defineConfig } from "@helmr/sdk"

export default defineConfig({
  // Where the modules are that export Agents and Templates.
  dirs: ["agents"],
})
