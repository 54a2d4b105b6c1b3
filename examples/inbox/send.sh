#!/bin/sh
# Sends signed webhooks of two orders, each of them twice, as a shop does that has not heard the answer.
# Usage: SHOP_SECRET=... sh send.sh [URL]
set -eu
url=${1:-http://127.0.0.1:8080/shop}
for order in order-1 order-2; do
  body='{"kind":"order.paid","order":{"id":"'$order'"}}'
  signature=$(printf %s "$body" | openssl dgst -sha256 -hmac "$SHOP_SECRET" -r | cut -d ' ' -f 1)
  for time in first second; do
    status=$(curl -s -o /dev/null -w '%{http_code}' -H 'Content-Type: application/json' \
      -H "X-Shop-Signature: sha256=$signature" --data "$body" "$url")
    echo "$order, $time time: $status"
  done
done
