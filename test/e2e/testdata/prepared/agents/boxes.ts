import { networkInterfaces } from "node:os"
import { readFileSync } from "node:fs"
import { agent, image, template, type PrepareContext } from "@helmr/sdk"

const base = { image: image("e2e").from("node:24-bookworm-slim").workdir("/work"), resources: { cpu: 1, memory: "768MiB", disk: "1GiB" } } as const

/** Writes files, and installs a package of its own. What is in memory, and what still runs, is no part of the image. */
async function furnish({ exec }: PrepareContext): Promise<void> {
  await exec("echo once >> prepared && date +%s%N > when && echo $NAME > named", { env: { NAME: "furnished" } })
  await exec(["mkdir", "-p", "/opt/greeter"])
  await exec(`printf '{"name":"greeter","version":"1.0.0","bin":{"greet":"greet.js"}}' > package.json && printf '#!/usr/bin/env node\\nconsole.log("hello from greeter")\\n' > greet.js && chmod +x greet.js`, { cwd: "/opt/greeter" })
  await exec("npm install --global --offline --install-links --no-audit --no-fund /opt/greeter")
  await exec("echo volatile > /run/volatile; echo volatile > /dev/shm/volatile; (setsid sleep 1000 > /dev/null 2>&1 &)")
  console.log("furnished")
}

export const furnished = template({ ...base, id: "furnished", prepare: furnish })
/** Shares the callback, and so the image. */
export const likewise = template({ ...base, id: "likewise", prepare: furnish })
export const plain = template({ ...base, id: "plain" })

export const closed = template({
  ...base, id: "closed", prepareNetwork: { blockAll: true }, network: { allowDomains: ["allowed.example"] },
  prepare: async ({ exec }) => {
    await exec(["node", "-e", `require("fs").writeFileSync("interfaces", JSON.stringify(Object.keys(require("os").networkInterfaces())))`])
  },
})

/** Asks for a name that its policy does not have, and fails at once. */
export const refused = template({
  ...base, id: "refused", prepareNetwork: { allowDomains: ["allowed.example"] },
  prepare: async ({ exec }) => {
    await exec(["node", "-e", `require("dns").lookup("packages.refused.example", (err) => process.exit(err ? 9 : 0))`])
  },
})

export const broken = template({
  ...base, id: "broken",
  prepare: async ({ exec }) => {
    console.log("looking for the machine")
    await exec("echo the machine is broken >&2; exit 7")
  },
})

export const slow = template({
  ...base, id: "slow",
  prepare: async ({ exec }) => {
    await exec("echo begun >> attempts; echo begun; sleep 6; echo done >> attempts")
  },
})

/** As slow, and a preparation of its own. */
export const slower = template({ ...base, id: "slower", prepare: ({ exec }) => exec("echo begun >> attempts; echo begun; sleep 6; echo done >> attempts") })

/** Prepared anew after each rotation of its Secret. */
export const restless = template({
  ...base, id: "restless", prepareSecrets: [{ secret: "TURN", env: { name: "TURN", mode: "raw" } }],
  prepare: ({ exec }) => exec("echo $TURN begun >> attempts; head -c 8000000 /dev/urandom > goods; sleep 1; sha256sum goods > sum; echo $TURN done >> attempts"),
})

export const secretive = template({
  ...base, id: "secretive", prepareSecrets: [{ secret: "TOKEN", env: { name: "TOKEN", mode: "raw" } }, { secret: "KEY", file: { path: "/run/secrets/key" } }],
  prepare: async ({ exec }) => {
    await exec(`printf %s "$TOKEN" | sha256sum | cut -d' ' -f1 > token; sha256sum /run/secrets/key | cut -d' ' -f1 > key`)
  },
})

export const reader = agent({
  id: "reader",
  template: furnished,
  turn: () => ({ prepared: readFileSync("/work/prepared", "utf8"), interfaces: Object.keys(networkInterfaces()).length }),
})
