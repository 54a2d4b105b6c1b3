// Walks through the operators' page in Chromium, as people do, and ends with an error at the first thing that is not as it should be.
//
//   node page.mjs CHROMIUM PAGE CONTROL SCREENSHOTS [short | picture]
//
// CONTROL is a server of the test: /work does a job, /revoke takes the right to change from the admin, /link has a link to the page.
// Tokens are in the environment. The short walk ends before the look at every view; picture makes those of the README alone.
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { chromium } from 'playwright-core';

const [executablePath, url, control, screenshots, walk] = process.argv.slice(2);
const { ADMIN_TOKEN, READER_TOKEN } = process.env;
const axe = await readFile(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

// As root, Chromium has no sandbox.
const browser = await chromium.launch({ executablePath, args: process.getuid() === 0 ? ['--no-sandbox'] : [] });

// open opens a window of its own, in which any script, dialog or request to elsewhere is a failure.
async function open(options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(20000);
  page.on('dialog', (d) => { throw new Error(`a dialog: ${d.message()}`); });
  page.on('pageerror', (e) => { throw e; });
  page.on('request', (r) => assert.ok(r.url().startsWith(`${url}/`), `a request to ${r.url()}`));
  page.on('console', (m) => assert.ok(!['error', 'warning'].includes(m.type()) || m.text().startsWith('Failed to load resource: the server responded with a status of 4'), `console: ${m.text()}`));
  return page;
}

// check has axe look at the page, which needs a frame that may run scripts: the policy of the page lets none.
async function check(page, name) {
  if (walk === 'short') return;
  const session = await page.context().newCDPSession(page);
  const { frameTree } = await session.send('Page.getFrameTree');
  const { executionContextId } = await session.send('Page.createIsolatedWorld', { frameId: frameTree.frame.id, worldName: 'axe' });
  const run = async (expression) => {
    const { result, exceptionDetails } = await session.send('Runtime.evaluate', {
      expression, contextId: executionContextId, awaitPromise: true, returnByValue: true,
    });
    assert.ok(!exceptionDetails, JSON.stringify(exceptionDetails));
    return result.value;
  };
  await run(axe);
  const violations = await run(`axe.run().then((r) => r.violations.map((v) => ({id: v.id, impact: v.impact, nodes: v.nodes.map((n) => n.html + ' ' + n.failureSummary)})))`);
  await session.detach();
  const bad = violations.filter((v) => v.impact === 'serious' || v.impact === 'critical');
  assert.deepEqual(bad, [], `axe finds on ${name}: ${JSON.stringify(bad, null, 1)}`);
  for (const v of violations) console.log(`axe, ${v.impact}, on ${name}: ${v.id}`);
  await page.screenshot({ path: join(screenshots, `${name}.png`), fullPage: true });
}

async function signIn(page, token) {
  await page.getByLabel(/^Token of a caller/).fill(token);
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.getByRole('button', { name: 'Sign out' }).waitFor();
}

const heading = (page, name) => page.getByRole('heading', { level: 1, name, exact: true }).waitFor();

// changes signs in, has a dead job done, and deletes others.
async function changes(page) {
  // Without a token, and with a wrong one.
  assert.equal((await page.goto(`${url}/jobs?show=dead`)).status(), 401);
  await heading(page, 'Sign in');
  assert.equal(await page.getByRole('table').count(), 0);
  await check(page, 'sign-in');
  await page.getByLabel(/^Token of a caller/).fill('jobonce_wrong');
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.getByRole('alert').waitFor();
  await signIn(page, ADMIN_TOKEN);
  await heading(page, 'Dead jobs'); // Where it was going to.
  const cookies = await page.context().cookies();
  assert.deepEqual(cookies.map((c) => [c.name, c.httpOnly, c.sameSite]), [['jobonce', true, 'Strict']]);
  await check(page, 'dead');

  // A dead job is found, opened, requeued, and done by a worker.
  await page.getByLabel('Job id, or how it begins').fill('shop:dead');
  await page.getByLabel('Job id, or how it begins').press('Enter');
  await heading(page, 'All jobs');
  assert.equal(await page.getByRole('row').count(), 4);
  await page.getByRole('link', { name: 'shop:dead-1' }).click();
  await heading(page, 'shop:dead-1');
  await page.getByText('the shop is closed').waitFor();
  assert.equal(await page.getByText('9007199254740993').count(), 0);
  await page.getByRole('link', { name: /^Show the body/ }).click();
  await page.getByRole('region', { name: 'Body' }).getByText('9007199254740993').waitFor();
  await check(page, 'job');
  await page.getByRole('button', { name: 'Requeue…' }).click();
  await heading(page, 'Requeue this job?');
  await check(page, 'confirm');
  await page.getByRole('button', { name: 'Requeue the job' }).click();
  await heading(page, 'Requeued');
  await check(page, 'requeued');
  assert.equal((await fetch(`${control}/work`)).status, 200);
  await page.getByRole('link', { name: 'shop:dead-1' }).click();
  await page.getByText('Completed', { exact: true }).waitFor();

  // Two are deleted, by the keyboard alone. Sent once more, that does no harm.
  await page.goto(`${url}/jobs?show=dead`);
  for (const [name, key] of [['Choose shop:dead-2', 'Space'], ['Choose shop:dead-3', 'Space'], ['Delete…', 'Enter'], ['Delete 2 jobs', 'Enter']]) {
    await tabTo(page, name);
    await page.keyboard.press(key);
    if (name === 'Delete…') await heading(page, 'Delete 2 jobs?');
  }
  await heading(page, 'Deleted 2 jobs');
  assert.equal(await page.getByText('Deleted', { exact: true }).count(), 2);
  await page.reload();
  await heading(page, 'Deleted 2 jobs');
  assert.equal(await page.getByText('Was gone already').count(), 2);
}

// views looks at the others: hostile bodies, dark and narrow ones, those of a reader, and of who loses a right.
async function views(page) {
  // A link of another site, such as an alert's, leads to whoever is signed in.
  const elsewhere = await page.context().newPage();
  await elsewhere.goto(`${control.replace('127.0.0.1', 'localhost')}/link`);
  await elsewhere.getByRole('link').click();
  await heading(elsewhere, 'Jobs in conflict');
  await elsewhere.close();

  await page.goto(`${url}/job?id=hostile&body=1`);
  const body = page.getByRole('region', { name: 'Body' });
  assert.match(await body.textContent(), /<script>document\.title = "mine"<\/script>/);
  assert.match(await body.textContent(), /U\+202E/);
  assert.doesNotMatch(await body.textContent(), /[\u202a-\u202e\u2066-\u2069\u0000]/);
  assert.equal(await page.title(), 'hostile · JobOnce');
  assert.equal(await page.evaluate(() => document.scripts.length), 0);
  await check(page, 'hostile');
  await page.goto(`${url}/job?id=long&body=1`);
  assert.equal((await body.textContent()).length, 1 << 20);
  assert.ok(await fits(page), 'a long line makes the page wider than the window');
  await page.goto(`${url}/job?id=marked&body=1`);
  assert.equal(await body.locator('b').count(), 10000);
  await page.goto(`${url}/?refresh`);
  await page.getByRole('link', { name: 'Pause' }).click();
  await page.getByRole('link', { name: /^Ask again/ }).waitFor();
  await page.goto(`${url}/expected?show=overdue`);
  await check(page, 'overdue');
  await page.goto(`${url}/job?id=none`);
  await page.getByRole('alert').getByText('JOB_NOT_FOUND').waitFor();
  await check(page, 'not-found');
  await page.goto(`${url}/jobs?show=held`);
  await check(page, 'empty');
  await page.goto(`${url}/jobs?all=1`);
  await check(page, 'chosen');

  // Dark, and narrow. A reader has no buttons.
  for (const [name, options] of [['dark', { colorScheme: 'dark' }], ['narrow', { viewport: { width: 320, height: 640 } }]]) {
    const other = await open(options);
    await other.goto(url);
    await check(other, `sign-in-${name}`);
    await signIn(other, READER_TOKEN);
    for (const [view, path] of [['overview', '/'], ['jobs', '/jobs'], ['job', '/job?id=hostile'], ['expected', '/expected']]) {
      await other.goto(url + path);
      await check(other, `${view}-${name}`);
      assert.ok(await fits(other), `${view}-${name} is wider than the window`);
      assert.equal(await other.getByRole('button', { name: /Requeue|Delete/ }).count(), 0);
      assert.equal(await other.getByRole('checkbox').count(), 0);
    }
    await other.context().close();
  }

  // The right to change is lost while signed in.
  await page.goto(`${url}/jobs`);
  await page.getByRole('checkbox').first().check();
  assert.equal((await fetch(`${control}/revoke`)).status, 200);
  await page.getByRole('button', { name: 'Delete…' }).click();
  await page.getByRole('alert').getByText('may not delete jobs').waitFor();
  await page.goto(`${url}/jobs`);
  assert.equal(await page.getByRole('checkbox').count(), 0);
  await page.getByRole('button', { name: 'Sign out' }).click();
  await heading(page, 'Sign in');
}

// pictures makes those of the README.
async function pictures() {
  for (const [name, colorScheme] of [['page', 'light'], ['page-dark', 'dark']]) {
    const page = await open({ colorScheme, viewport: { width: 1200, height: 870 } });
    await page.goto(`${url}/jobs`);
    await signIn(page, ADMIN_TOKEN);
    await heading(page, 'All jobs');
    await page.screenshot({ path: join(screenshots, `${name}.png`), fullPage: true });
    await page.context().close();
  }
}

try {
  if (walk === 'picture') {
    await pictures();
  } else {
    const page = await open();
    await changes(page);
    if (walk !== 'short') await views(page);
  }
} finally {
  await browser.close();
}

// tabTo goes on with the Tab key until what has the name has the focus.
async function tabTo(page, name) {
  for (let i = 0; i < 100; i++) {
    await page.keyboard.press('Tab');
    const label = await page.evaluate(() => document.activeElement?.getAttribute('aria-label') ?? document.activeElement?.textContent);
    if (label === name) return;
  }
  assert.fail(`the Tab key does not come to ${name}`);
}

// fits tells whether all of the page fits into the window's width.
async function fits(page) {
  return page.evaluate(() => document.documentElement.scrollWidth <= document.documentElement.clientWidth);
}
