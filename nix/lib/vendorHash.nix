"sha256-OgLZU7v7iMV7h85igo4XuDE2AeHg1+7HxcDbhcNZj+w="
